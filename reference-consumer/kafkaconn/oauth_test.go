package kafkaconn

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTokenFromAnEndpoint(t *testing.T) {
	idp := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, secret, _ := r.BasicAuth()
		w.Header().Set("Content-Type", "application/json")
		if id != "me" || secret != "s3cret" || r.FormValue("scope") != "kafka" || r.FormValue("grant_type") != "client_credentials" {
			w.WriteHeader(http.StatusUnauthorized)
			_ = json.NewEncoder(w).Encode(map[string]string{"error": "invalid_client", "error_description": "not " + secret})
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": "tok", "token_type": "bearer", "expires_in": 60})
	}))
	defer idp.Close()
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	first := func(s SASL) (string, error) {
		s.Mechanism = "OAUTHBEARER"
		m, err := s.mechanism()
		if err != nil {
			return "", err
		}
		_, b, err := m.Authenticate(t.Context(), "broker:9092")
		return string(b), err
	}
	good := SASL{TokenURL: idp.URL, ClientID: "me", ClientSecretFile: file, Scopes: []string{"kafka"}}
	if b, err := first(good); err != nil || !strings.Contains(b, "auth=Bearer tok") {
		t.Errorf("%q, %v, want the endpoint's token", b, err)
	}
	bad := good
	bad.ClientSecretFile, bad.ClientSecret = "", "wr0ng"
	if _, err := first(bad); err == nil || !strings.Contains(err.Error(), "invalid_client") || strings.Contains(err.Error(), "wr0ng") {
		t.Errorf("%v, want a refusal that does not repeat the secret", err)
	}
	for _, s := range []SASL{{}, {TokenURL: idp.URL}, {TokenURL: "idp", ClientID: "me", ClientSecret: "x"}, {TokenURL: idp.URL, TokenFile: file}} {
		if _, err := first(s); err == nil {
			t.Errorf("%+v: no error", s)
		}
	}
}
