package kafkaconn

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"oncewatch/collectors/token"
)

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
	c := token.NewCache(token.Func(s.tokenFromFile), nil)
	for _, want := range []string{"one", "two"} {
		if err := os.WriteFile(file, []byte(want+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := c.Get(context.Background()); err != nil || got != want {
			t.Errorf("%q, %v; want %s", got, err, want)
		}
	}
}
