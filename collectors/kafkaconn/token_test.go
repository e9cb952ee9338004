package kafkaconn

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/oauth2"
)

// A token is used again and fetched anew before it expires.
func TestTokenIsFetchedAgainBeforeItExpires(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	fetched := 0
	var fail error
	c := &tokenCache{now: func() time.Time { return now }, fetch: func(context.Context) (*oauth2.Token, error) {
		if fail != nil {
			return nil, fail
		}
		fetched++
		return &oauth2.Token{AccessToken: fmt.Sprint("token-", fetched), Expiry: now.Add(time.Hour)}, nil
	}}
	at := func(minute int) (string, error) {
		now = time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC)
		return c.get(context.Background())
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
	var auth *AuthError
	if _, err := at(140); !errors.Is(err, fail) || !errors.As(err, &auth) {
		t.Errorf("endpoint away, token expired: %v", err)
	}
	fail = nil
	if got, err := at(141); err != nil || got != "token-4" {
		t.Errorf("endpoint back: %q, %v", got, err)
	}
}

func TestTokenEndpoint(t *testing.T) {
	answer := func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		id, secret, _ := r.BasicAuth()
		if id != "me" || secret != "hunter2" || r.Form.Get("grant_type") != "client_credentials" || r.Form.Get("scope") != "a b" {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = fmt.Fprintf(w, `{"error": "invalid_client", "error_description": "not %s"}`, secret)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprint(w, `{"access_token": "tok", "token_type": "bearer", "expires_in": 300}`)
	}
	server := httptest.NewServer(http.HandlerFunc(answer))
	defer server.Close()
	s := SASL{Mechanism: OAuthBearer, OAuthTokenURL: server.URL, OAuthClientID: "me", OAuthClientSecret: "hunter2", OAuthScopes: []string{"a", "b"}}
	client := server.Client()
	token, err := s.tokenFromEndpoint(client)(context.Background())
	if err != nil || token.AccessToken != "tok" || time.Until(token.Expiry) < 4*time.Minute {
		t.Errorf("token %+v, %v", token, err)
	}
	s.OAuthClientSecret = "hunter3"
	if _, err = s.tokenFromEndpoint(client)(context.Background()); err == nil || !strings.Contains(err.Error(), "invalid_client") || !strings.Contains(err.Error(), "--kafka.sasl.oauth-token-url") || strings.Contains(err.Error(), "hunter") {
		t.Errorf("wrong secret: %v", err)
	}
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.OAuthClientSecret, s.OAuthClientSecretFile = "", file
	if _, err := s.tokenFromEndpoint(client)(context.Background()); err != nil {
		t.Errorf("secret from a file: %v", err)
	}
	s.OAuthTokenURL = "http://u:hunter2@127.0.0.1:1/token"
	if _, err = s.tokenFromEndpoint(client)(context.Background()); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("endpoint away: %v", err)
	}
}

func TestTokenFileIsReadEachTime(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	s := SASL{Mechanism: OAuthBearer, OAuthTokenFile: file}
	c := &tokenCache{now: time.Now, fetch: s.tokenFromFile}
	for _, want := range []string{"one", "two"} {
		if err := os.WriteFile(file, []byte(want+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := c.get(context.Background()); err != nil || got != want {
			t.Errorf("%q, %v; want %s", got, err, want)
		}
	}
}
