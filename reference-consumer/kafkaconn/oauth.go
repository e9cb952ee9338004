package kafkaconn

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

// endpoint asks for a token at each authentication: a broker ends a session
// with its token, so none is kept that has aged.
func (s SASL) endpoint() (sasl.Mechanism, error) {
	u, err := url.Parse(s.TokenURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("--kafka.sasl.oauth-token-url is no address: want for example https://idp.example/token")
	}
	if s.ClientID == "" || (s.ClientSecret == "") == (s.ClientSecretFile == "") {
		return nil, errors.New("--kafka.sasl.oauth-token-url needs --kafka.sasl.oauth-client-id and one of --kafka.sasl.oauth-client-secret and --kafka.sasl.oauth-client-secret-file")
	}
	client := &http.Client{Timeout: 10 * time.Second}
	return oauth.Oauth(func(ctx context.Context) (oauth.Auth, error) {
		secret := s.ClientSecret
		if s.ClientSecretFile != "" {
			b, err := os.ReadFile(s.ClientSecretFile)
			if err != nil {
				return oauth.Auth{}, fmt.Errorf("--kafka.sasl.oauth-client-secret-file: %w", err)
			}
			secret = strings.TrimRight(string(b), "\r\n")
		}
		conf := clientcredentials.Config{ClientID: s.ClientID, ClientSecret: secret, TokenURL: s.TokenURL, Scopes: s.Scopes}
		token, err := conf.Token(context.WithValue(ctx, oauth2.HTTPClient, client))
		if err != nil {
			return oauth.Auth{}, fmt.Errorf("no token from --kafka.sasl.oauth-token-url (%s): %w", u.Redacted(), brief(err))
		}
		return oauth.Auth{Token: token.AccessToken}, nil
	}), nil
}

// brief leaves the answer's body out of an error, which may repeat what was
// sent, and the address, which may hold a password.
func brief(err error) error {
	var answer *oauth2.RetrieveError
	if errors.As(err, &answer) && answer.Response != nil {
		return fmt.Errorf("%s %s", answer.Response.Status, answer.ErrorCode)
	}
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}
