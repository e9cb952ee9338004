package token

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/feature/rds/auth"
)

// AWSLogins signs logins with the credentials that the SDK's chain finds:
// environment, web identity (IRSA), profile, container (Pod Identity, ECS),
// instance. The SDK fetches them before they expire. The zero value is ready.
type AWSLogins struct {
	mu  sync.Mutex
	cfg *aws.Config
}

// expiryWindow is how long before their end credentials are fetched again.
const expiryWindow = 5 * time.Minute

func (a *AWSLogins) config(ctx context.Context) (aws.Config, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cfg == nil {
		cfg, err := config.LoadDefaultConfig(ctx, config.WithCredentialsCacheOptions(func(o *aws.CredentialsCacheOptions) {
			o.ExpiryWindow = expiryWindow
		}))
		if err != nil {
			return aws.Config{}, fmt.Errorf("AWS: the configuration cannot be read: %w", err)
		}
		a.cfg = &cfg
	}
	return *a.cfg, nil
}

// Credentials are those of now.
func (a *AWSLogins) Credentials(ctx context.Context) (aws.Credentials, error) {
	cfg, err := a.config(ctx)
	if err != nil {
		return aws.Credentials{}, err
	}
	found, err := cfg.Credentials.Retrieve(ctx)
	if err != nil {
		return aws.Credentials{}, fmt.Errorf("AWS: no credentials; give the pod or machine a role, or set AWS_PROFILE: %w", brief(err))
	}
	return found, nil
}

// rdsHost is how RDS and Aurora name their endpoints.
var rdsHost = regexp.MustCompile(`\.([a-z0-9-]+)\.rds\.amazonaws\.com(\.cn)?\.?$`)

// Database is the password of a user of RDS or Aurora, good for 15 minutes and
// for the endpoint it is signed for.
func (a *AWSLogins) Database(ctx context.Context, host string, port uint16, user string) (string, error) {
	cfg, err := a.config(ctx)
	if err != nil {
		return "", err
	}
	region := cfg.Region
	if m := rdsHost.FindStringSubmatch(host); m != nil {
		region = m[1]
	}
	if region == "" {
		return "", errors.New("AWS: the region is not known: connect to the endpoint's own name, or set AWS_REGION")
	}
	// Asked first: this error says what to do.
	if _, err := a.Credentials(ctx); err != nil {
		return "", err
	}
	return auth.BuildAuthToken(ctx, net.JoinHostPort(host, strconv.Itoa(int(port))), region, user, cfg.Credentials)
}
