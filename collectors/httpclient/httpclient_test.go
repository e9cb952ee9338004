package httpclient_test

import (
	"context"

	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"oncewatch/collectors/httpclient"
	"oncewatch/collectors/poll"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func get(t *testing.T, c httpclient.Config, address string) (int, error) {
	t.Helper()
	if err := c.Validate("--x."); err != nil {
		t.Fatal(err)
	}
	client, err := httpclient.New(c, "--x.")
	if err != nil {
		return 0, err
	}
	defer client.CloseIdleConnections()
	resp, err := httpclient.Get(context.Background(), client, address, "text/plain")
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Another host is never asked, and so gets neither token nor query; the same
// host is, without a referrer.
func TestRedirects(t *testing.T) {
	asked := false
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	defer other.Close()
	mux := http.NewServeMux()
	mux.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+"/hunter2", http.StatusFound)
	})
	mux.HandleFunc("/here", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/end", http.StatusFound) })
	mux.HandleFunc("/loop", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/loop", http.StatusFound) })
	mux.HandleFunc("/bad", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "http://[hunter2")
		w.WriteHeader(http.StatusFound)
	})
	mux.HandleFunc("/end", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Referer") != "" || r.Header.Get("Authorization") != "Bearer s3cret" {
			http.Error(w, "", http.StatusTeapot)
		}
	})
	s := httptest.NewServer(mux)
	defer s.Close()
	c := httpclient.Config{BearerTokenFile: file(t, "s3cret\n")}
	if code, err := get(t, c, s.URL+"/here?token=hunter2"); err != nil || code != http.StatusOK {
		t.Errorf("to the same host: %d, %v", code, err)
	}
	for path, want := range map[string]string{"/away": "it redirects to another host", "/loop": "again and again", "/bad": "no HTTP, or ended early"} {
		_, err := get(t, c, s.URL+path+"?token=hunter2")
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if asked {
		t.Error("the other host was asked")
	}
}

// Nothing that the other side wrote is repeated, nor any secret of the address;
// each cause has its words.
func TestErrors(t *testing.T) {
	raw := func(answer string) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Read(make([]byte, 4096))
				_, _ = conn.Write([]byte(answer))
				_ = conn.Close()
			}
		}()
		return l.Addr().String()
	}
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "hunter2", http.StatusForbidden) }))
	defer plain.Close()
	for address, want := range map[string]struct{ kind, says string }{
		"http://u:hunter2@127.0.0.1:1/x?t=hunter2":            {"unreachable", "connection refused"},
		"http://" + raw("hunter2 is no answer\r\n\r\n"):       {"malformed", "no HTTP"},
		"http://" + raw("HTTP/1.1 200 OK\r\nhunter2\r\n\r\n"): {"malformed", "no HTTP"},
		"http://" + raw("HTTP/1.1 500 hunter2\r\n\r\n"):       {"failed", "HTTP 500 Internal Server Error"},
		plain.URL:  {"denied", "HTTP 403 Forbidden: see username"},
		secure.URL: {"denied", "tls.ca-file"},
		strings.Replace(plain.URL, "http:", "https:", 1):               {"malformed", "write http://"},
		"https://" + strings.TrimPrefix(raw("hunter2 hunter2"), "tcp"): {"malformed", "does not speak TLS"},
		"http://no-such-host.invalid/":                                 {"unreachable", "lookup no-such-host.invalid"},
	} {
		_, err := get(t, httpclient.Config{}, address)
		if err == nil || poll.Kind(err) != want.kind || !strings.Contains(err.Error(), want.says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %s: %v, want %s: %s", address, poll.Kind(err), err, want.kind, want.says)
		}
	}
}

// Files are read for each request: what has rotated is used without a restart.
func TestSecretsFromFiles(t *testing.T) {
	want := "Bearer one"
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != want || r.Header.Get("X-Scope-Orgid") != "team" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer s.Close()
	token := file(t, "one")
	client, err := httpclient.New(httpclient.Config{BearerTokenFile: token, Headers: map[string]string{"x-scope-orgid": "team"}}, "--x.")
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	for _, secret := range []string{"one", "two"} {
		want = "Bearer " + secret
		if err := os.WriteFile(token, []byte(secret), 0o600); err != nil {
			t.Fatal(err)
		}
		resp, err := httpclient.Get(context.Background(), client, s.URL, "*/*")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	want = "Basic dTpw"
	if _, err := get(t, httpclient.Config{Username: "u", PasswordFile: file(t, "p\n"), Headers: map[string]string{"X-Scope-OrgID": "team"}}, s.URL); err != nil {
		t.Error(err)
	}
	if _, err := get(t, httpclient.Config{BearerTokenFile: "/nowhere/token"}, s.URL); err == nil || !strings.Contains(err.Error(), "/nowhere/token") {
		t.Errorf("error: %v", err)
	}
	if _, err := get(t, httpclient.Config{TLS: httpclient.TLS{CAFile: "/nowhere/ca.pem"}}, s.URL); err == nil || !strings.Contains(err.Error(), "--x.tls") || !strings.Contains(err.Error(), "/nowhere/ca.pem") {
		t.Errorf("error: %v", err)
	}
}

func TestAuthority(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer s.Close()
	ca := file(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
	if _, err := get(t, httpclient.Config{TLS: httpclient.TLS{CAFile: ca}}, s.URL); err != nil {
		t.Error(err)
	}
	if _, err := get(t, httpclient.Config{TLS: httpclient.TLS{CAFile: ca, ServerName: "other.example"}}, s.URL); err == nil || !strings.Contains(err.Error(), "tls.server-name") {
		t.Errorf("error: %v", err)
	}
}

func TestValidate(t *testing.T) {
	for want, c := range map[string]httpclient.Config{
		"--x.tls.cert-file and --x.tls.key-file": {TLS: httpclient.TLS{CertFile: "a"}},
		"--x.bearer-token-file and --x.username": {BearerTokenFile: "a", Username: "b", PasswordFile: "c"},
		"--x.username and --x.password-file":     {Username: "b"},
		"--x.headers":                            {Headers: map[string]string{"Authorization": "x"}},
	} {
		if err := c.Validate("--x."); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if s := fmt.Sprintf("%v", httpclient.Redacted("http://u:hunter2@h/p?q=hunter2#f")); s != "http://h/p" {
		t.Error(s)
	}
}
