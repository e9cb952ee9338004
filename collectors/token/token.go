// Package token has short-lived tokens, which stand for a password: from a
// command, or from the cloud that the program runs in. Each login asks for one,
// so that a connection is never made with a token that has expired.
package token

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"
)

// Source gives a token; one without Expiry is good for this login alone.
type Source interface {
	Token(ctx context.Context) (*oauth2.Token, error)
}

// Func is a Source.
type Func func(ctx context.Context) (*oauth2.Token, error)

// Token implements Source.
func (f Func) Token(ctx context.Context) (*oauth2.Token, error) { return f(ctx) }

// Cache keeps a token until shortly before it expires.
type Cache struct {
	source Source
	now    func() time.Time

	mu    sync.Mutex
	token *oauth2.Token
	until time.Time // when the token is to be fetched again
}

// NewCache makes a cache; now is its clock, nil for time.Now.
func NewCache(source Source, now func() time.Time) *Cache {
	if now == nil {
		now = time.Now
	}
	return &Cache{source: source, now: now}
}

// One part in refetchShare of a token's life is left when it is fetched again: a
// session that a server grants for a token about to expire would be too short.
const refetchShare = 3

// Get is the token. One that cannot be fetched again is used to its end, but
// not past it.
func (c *Cache) Get(ctx context.Context) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if c.token != nil && now.Before(c.until) {
		return c.token.AccessToken, nil
	}
	token, err := c.source.Token(ctx)
	if err != nil {
		if c.token != nil && now.Before(c.token.Expiry) {
			return c.token.AccessToken, nil
		}
		return "", err
	}
	c.token, c.until = token, now
	if !token.Expiry.IsZero() {
		c.until = token.Expiry.Add(-token.Expiry.Sub(now) / refetchShare)
	}
	return token.AccessToken, nil
}

// Forget makes the next Get fetch: a server may reject a token that has not
// expired, because it was revoked or because clocks differ.
func (c *Cache) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.token = nil
}

// The clouds whose logins are known.
const (
	AWS    = "aws"
	Azure  = "azure"
	Google = "google"
)

// Known is an error for a name that is none of these; flag names the setting.
func Known(flag, name string, clouds ...string) error {
	for _, c := range clouds {
		if name == c {
			return nil
		}
	}
	return fmt.Errorf("%s: %q is not known: want %s", flag, name, strings.Join(clouds, ", "))
}
