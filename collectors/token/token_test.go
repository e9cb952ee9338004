package token_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/oauth2"

	"oncewatch/collectors/token"
)

// A token is used again and fetched anew before it expires.
func TestTokenIsFetchedAgainBeforeItExpires(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	fetched := 0
	var fail error
	c := token.NewCache(token.Func(func(context.Context) (*oauth2.Token, error) {
		if fail != nil {
			return nil, fail
		}
		fetched++
		return &oauth2.Token{AccessToken: fmt.Sprint("token-", fetched), Expiry: now.Add(time.Hour)}, nil
	}), func() time.Time { return now })
	at := func(minute int) (string, error) {
		now = time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC)
		return c.Get(context.Background())
	}
	for _, tt := range []struct {
		minute int
		want   string
	}{{0, "token-1"}, {30, "token-1"}, {39, "token-1"}, {40, "token-2"}, {60, "token-2"}, {79, "token-2"}, {80, "token-3"}} {
		if got, err := at(tt.minute); err != nil || got != tt.want {
			t.Errorf("minute %d: %q, %v; want %s", tt.minute, got, err, tt.want)
		}
	}
	// An endpoint that fails costs nothing while the old token lasts, then it
	// is an error that says so.
	fail = errors.New("the endpoint is away")
	if got, err := at(139); err != nil || got != "token-3" {
		t.Errorf("endpoint away, token still good: %q, %v", got, err)
	}
	if _, err := at(140); !errors.Is(err, fail) {
		t.Errorf("endpoint away, token expired: %v", err)
	}
	fail = nil
	if got, err := at(141); err != nil || got != "token-4" {
		t.Errorf("endpoint back: %q, %v", got, err)
	}
}
