package kafkaconn

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"oncewatch/collectors/config"
	"oncewatch/collectors/token"
)

// tokenTimeout is how long a token endpoint may take to answer.
const tokenTimeout = 10 * time.Second

// AuthError is a token that could not be had.
type AuthError struct{ Err error }

func (e *AuthError) Error() string { return e.Err.Error() }
func (e *AuthError) Unwrap() error { return e.Err }

func (s SASL) tokenFromEndpoint(client *http.Client) token.Func {
	return func(ctx context.Context) (*oauth2.Token, error) {
		secret := s.OAuthClientSecret
		if s.OAuthClientSecretFile != "" {
			var err error
			if secret, err = config.ReadSecret("--kafka.sasl.oauth-client-secret-file", s.OAuthClientSecretFile); err != nil {
				return nil, err
			}
		}
		conf := clientcredentials.Config{ClientID: s.OAuthClientID, ClientSecret: secret.Reveal(), TokenURL: s.OAuthTokenURL, Scopes: s.OAuthScopes}
		got, err := conf.Token(context.WithValue(ctx, oauth2.HTTPClient, client))
		if err != nil {
			return nil, fmt.Errorf("no token from --kafka.sasl.oauth-token-url (%s): %w", withoutPassword(s.OAuthTokenURL), brief(err))
		}
		return got, nil
	}
}

// brief leaves the answer's body out of an error, which may repeat what was
// sent.
func brief(err error) error {
	var answer *oauth2.RetrieveError
	if errors.As(err, &answer) && answer.Response != nil {
		if answer.ErrorCode != "" {
			return fmt.Errorf("%s: %s", answer.Response.Status, answer.ErrorCode)
		}
		return errors.New(answer.Response.Status)
	}
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

func withoutPassword(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "not a URL"
	}
	return u.Redacted()
}

// tokenFromFile has no expiry: the file is read each time it is asked.
func (s SASL) tokenFromFile(context.Context) (*oauth2.Token, error) {
	text, err := config.ReadSecret("--kafka.sasl.oauth-token-file", s.OAuthTokenFile)
	if err != nil {
		return nil, err
	}
	return &oauth2.Token{AccessToken: text.Reveal()}, nil
}
