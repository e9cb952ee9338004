package kafkaconn

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/aws"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"oncewatch/collectors/config"
	"oncewatch/collectors/token"
)

// The SASL mechanisms.
const (
	Plain       = "PLAIN"
	ScramSHA256 = "SCRAM-SHA-256"
	ScramSHA512 = "SCRAM-SHA-512"
	OAuthBearer = "OAUTHBEARER"
	MSKIAM      = "AWS_MSK_IAM"
)

var mechanisms = []string{Plain, ScramSHA256, ScramSHA512, OAuthBearer, MSKIAM}

// SASL is the flags for authentication with the brokers.
type SASL struct {
	Mechanism    string        `placeholder:"NAME" help:"PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM (with the credentials that the AWS SDK finds). Default: no authentication."`
	Username     string        `help:"User of PLAIN and SCRAM."`
	Password     config.Secret `help:"Password of PLAIN and SCRAM. Better set by environment, file or --kafka.sasl.password-file."`
	PasswordFile string        `placeholder:"FILE" help:"File with the password, read again for every connection."`

	OAuthTokenURL         string        `name:"oauth-token-url" placeholder:"URL" help:"Token endpoint of OAUTHBEARER (grant type client_credentials)."`
	OAuthClientID         string        `name:"oauth-client-id" help:"Client id at the token endpoint."`
	OAuthClientSecret     config.Secret `name:"oauth-client-secret" help:"Client secret at the token endpoint."`
	OAuthClientSecretFile string        `name:"oauth-client-secret-file" placeholder:"FILE" help:"File with the client secret, read again for every token."`
	OAuthScopes           []string      `name:"oauth-scopes" help:"Scopes to ask the token endpoint for."`
	OAuthTokenFile        string        `name:"oauth-token-file" placeholder:"FILE" help:"File with a token that something else renews, read again for every connection; instead of a token endpoint."`
	OAuthTokenFrom        string        `name:"oauth-token-from" placeholder:"CLOUD" help:"Where else the token is had, before it expires: azure (Event Hubs, by Entra ID, with the identity that the cloud gives this process)."`
	OAuthTokenCommand     string        `name:"oauth-token-command" placeholder:"COMMAND" help:"Program, with its arguments, that writes a token; run without a shell for every connection, for at most 10 s."`
}

func (s SASL) validate() error {
	set := map[string]bool{
		"username": s.Username != "", "password": s.Password != "", "password-file": s.PasswordFile != "",
		"oauth-token-url": s.OAuthTokenURL != "", "oauth-client-id": s.OAuthClientID != "", "oauth-client-secret": s.OAuthClientSecret != "",
		"oauth-client-secret-file": s.OAuthClientSecretFile != "", "oauth-scopes": len(s.OAuthScopes) > 0, "oauth-token-file": s.OAuthTokenFile != "",
		"oauth-token-from": s.OAuthTokenFrom != "", "oauth-token-command": s.OAuthTokenCommand != "",
	}
	var allowed, needed []string
	switch {
	case s.Mechanism == "":
	case s.Mechanism == OAuthBearer && s.OAuthTokenFile != "":
		allowed = []string{"oauth-token-file"}
	case s.Mechanism == OAuthBearer && s.OAuthTokenFrom != "":
		if err := token.Known("--kafka.sasl.oauth-token-from", s.OAuthTokenFrom, token.Azure); err != nil {
			return err
		}
		allowed = []string{"oauth-token-from"}
	case s.Mechanism == OAuthBearer && s.OAuthTokenCommand != "":
		allowed = []string{"oauth-token-command"}
	case s.Mechanism == MSKIAM:
	case s.Mechanism == OAuthBearer:
		allowed = []string{"oauth-token-url", "oauth-client-id", "oauth-client-secret", "oauth-client-secret-file", "oauth-scopes"}
		needed = []string{"oauth-token-url", "oauth-client-id"}
	case slices.Contains(mechanisms, s.Mechanism):
		allowed = []string{"username", "password", "password-file"}
		needed = []string{"username"}
	default:
		return fmt.Errorf("--kafka.sasl.mechanism: %q is not known: want %s", s.Mechanism, strings.Join(mechanisms, ", "))
	}
	for name := range set {
		if !set[name] || slices.Contains(allowed, name) {
			continue
		}
		if s.Mechanism == "" {
			return fmt.Errorf("--kafka.sasl.%s is set but no mechanism: set --kafka.sasl.mechanism to %s", name, strings.Join(mechanisms, ", "))
		}
		return fmt.Errorf("--kafka.sasl.%s does not go with --kafka.sasl.mechanism=%s: remove one of them", name, s.Mechanism)
	}
	for _, name := range needed {
		if !set[name] {
			return fmt.Errorf("--kafka.sasl.mechanism=%s needs --kafka.sasl.%s", s.Mechanism, name)
		}
	}
	for _, pair := range [][2]string{{"password", "password-file"}, {"oauth-client-secret", "oauth-client-secret-file"}} {
		if set[pair[0]] && set[pair[1]] {
			return fmt.Errorf("--kafka.sasl.%s and --kafka.sasl.%s are both set: remove one of them", pair[0], pair[1])
		}
		if slices.Contains(allowed, pair[0]) && !set[pair[0]] && !set[pair[1]] {
			return fmt.Errorf("--kafka.sasl.mechanism=%s needs --kafka.sasl.%s or --kafka.sasl.%s", s.Mechanism, pair[0], pair[1])
		}
	}
	if s.OAuthTokenURL != "" {
		// Its error would repeat the address, and the password in it.
		if u, err := url.Parse(s.OAuthTokenURL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return fmt.Errorf("--kafka.sasl.oauth-token-url is no address: want for example https://idp.example/token")
		}
	}
	for flag, path := range map[string]string{"password-file": s.PasswordFile, "oauth-client-secret-file": s.OAuthClientSecretFile, "oauth-token-file": s.OAuthTokenFile} {
		if path == "" {
			continue
		}
		if _, err := config.ReadSecret("--kafka.sasl."+flag, path); err != nil {
			return err
		}
	}
	return nil
}

// mechanism is nil where no authentication is configured; brokers are the
// configured addresses. rejected, where it is not nil, is to be called when a
// broker does not accept what was offered.
func (s SASL) mechanism(brokers []string, now func() time.Time) (_ sasl.Mechanism, rejected func()) {
	password := func() (config.Secret, error) {
		if s.PasswordFile != "" {
			return config.ReadSecret("--kafka.sasl.password-file", s.PasswordFile)
		}
		return s.Password, nil
	}
	scramAuth := func(context.Context) (scram.Auth, error) {
		pass, err := password()
		return scram.Auth{User: s.Username, Pass: pass.Reveal()}, err
	}
	switch s.Mechanism {
	case Plain:
		return plain.Plain(func(context.Context) (plain.Auth, error) {
			pass, err := password()
			return plain.Auth{User: s.Username, Pass: pass.Reveal()}, err
		}), nil
	case ScramSHA256:
		return scram.Sha256(scramAuth), nil
	case ScramSHA512:
		return scram.Sha512(scramAuth), nil
	case OAuthBearer:
		tokens := token.NewCache(s.tokens(brokers), now)
		return oauth.Oauth(func(ctx context.Context) (oauth.Auth, error) {
			text, err := tokens.Get(ctx)
			if err != nil {
				return oauth.Auth{}, &AuthError{err}
			}
			return oauth.Auth{Token: text}, nil
		}), tokens.Forget
	case MSKIAM:
		logins := &token.AWSLogins{}
		return aws.ManagedStreamingIAM(func(ctx context.Context) (aws.Auth, error) {
			found, err := logins.Credentials(ctx)
			if err != nil {
				return aws.Auth{}, &AuthError{err}
			}
			return aws.Auth{AccessKey: found.AccessKeyID, SecretKey: found.SecretAccessKey, SessionToken: found.SessionToken, UserAgent: "oncewatch"}, nil
		}), nil
	}
	return nil, nil
}

// tokens are those of OAUTHBEARER.
func (s SASL) tokens(brokers []string) token.Source {
	switch {
	case s.OAuthTokenFile != "":
		return token.Func(s.tokenFromFile)
	case s.OAuthTokenCommand != "":
		return token.Command("--kafka.sasl.oauth-token-command", s.OAuthTokenCommand)
	case s.OAuthTokenFrom == token.Azure:
		host, _, _ := net.SplitHostPort(brokers[0]) // validated
		return token.EntraID(token.EventHubs(host), nil)
	}
	return s.tokenFromEndpoint(&http.Client{Timeout: tokenTimeout})
}
