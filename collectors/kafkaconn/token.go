package kafkaconn

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"oncewatch/collectors/config"
)

// tokenTimeout is how long a token endpoint may take to answer.
const tokenTimeout = 10 * time.Second

// AuthError is a token that could not be had.
type AuthError struct{ Err error }

func (e *AuthError) Error() string { return e.Err.Error() }
func (e *AuthError) Unwrap() error { return e.Err }

// tokenCache keeps a token until shortly before it expires. franz-go asks it
// for every new connection and for every re-authentication that a broker
// demands, so that a connection never outlives its token.
type tokenCache struct {
	fetch func(context.Context) (*oauth2.Token, error)
	now   func() time.Time

	mu    sync.Mutex
	token *oauth2.Token
	until time.Time // when the token is to be fetched again
}

// One part in refetchShare of a token's life is left when it is fetched again: a
// session that a broker grants for a token about to expire would be too short.
const refetchShare = 3

func (c *tokenCache) get(ctx context.Context) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if c.token != nil && now.Before(c.until) {
		return c.token.AccessToken, nil
	}
	token, err := c.fetch(ctx)
	if err != nil {
		// The old token is used to its end, but not past it.
		if c.token != nil && now.Before(c.token.Expiry) {
			return c.token.AccessToken, nil
		}
		return "", &AuthError{err}
	}
	c.token, c.until = token, now
	if !token.Expiry.IsZero() {
		c.until = token.Expiry.Add(-token.Expiry.Sub(now) / refetchShare)
	}
	return token.AccessToken, nil
}

// forget makes the next get fetch: a broker may reject a token that has not
// expired, because it was revoked or because clocks differ.
func (c *tokenCache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.token = nil
}

func (s SASL) tokenFromEndpoint(client *http.Client) func(context.Context) (*oauth2.Token, error) {
	return func(ctx context.Context) (*oauth2.Token, error) {
		secret := s.OAuthClientSecret
		if s.OAuthClientSecretFile != "" {
			var err error
			if secret, err = config.ReadSecret("--kafka.sasl.oauth-client-secret-file", s.OAuthClientSecretFile); err != nil {
				return nil, err
			}
		}
		conf := clientcredentials.Config{ClientID: s.OAuthClientID, ClientSecret: secret.Reveal(), TokenURL: s.OAuthTokenURL, Scopes: s.OAuthScopes}
		token, err := conf.Token(context.WithValue(ctx, oauth2.HTTPClient, client))
		if err != nil {
			return nil, fmt.Errorf("no token from --kafka.sasl.oauth-token-url (%s): %w", withoutPassword(s.OAuthTokenURL), brief(err))
		}
		return token, nil
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
	token, err := config.ReadSecret("--kafka.sasl.oauth-token-file", s.OAuthTokenFile)
	if err != nil {
		return nil, err
	}
	return &oauth2.Token{AccessToken: token.Reveal()}, nil
}
