package token_test

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
	"oncewatch/deploy/testenv"
)

// A pod with an identity, one with a projected token, and a machine each get
// credentials, and new ones before those expire.
func TestAWSCredentials(t *testing.T) {
	for name, set := range map[string]func(t *testing.T, c *testenv.Cloud){
		"pod identity": func(*testing.T, *testenv.Cloud) {},
		"web identity": func(t *testing.T, c *testenv.Cloud) {
			file := filepath.Join(t.TempDir(), "token")
			if err := os.WriteFile(file, []byte("projected"), 0o600); err != nil {
				t.Fatal(err)
			}
			t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", file)
			t.Setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/oncewatch")
			t.Setenv("AWS_ENDPOINT_URL_STS", c.URL+"/sts")
		},
		"instance": func(t *testing.T, _ *testenv.Cloud) { t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "") },
	} {
		t.Run(name, func(t *testing.T) {
			for life, want := range map[time.Duration]int{time.Hour: 1, time.Minute: 2} {
				cloud := testenv.NewCloud(t, life)
				set(t, cloud)
				logins := &token.AWSLogins{}
				for range 2 {
					got, err := logins.Credentials(t.Context())
					if err != nil || got.AccessKeyID != testenv.CloudAccessKey || got.SecretAccessKey != testenv.CloudSecretKey || got.SessionToken != testenv.CloudSession {
						t.Fatalf("%v, %v", got, err)
					}
				}
				// An instance's credentials that are about to expire are made to last.
				if n := cloud.Asked("aws"); n != want && name != "instance" {
					t.Errorf("asked %d times for credentials that last %v, want %d", n, life, want)
				}
			}
		})
	}
}

// A pod of AKS exchanges its projected token for one of Entra ID.
func TestEntraWorkloadIdentity(t *testing.T) {
	testenv.NewCloud(t, time.Hour)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("projected"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AZURE_FEDERATED_TOKEN_FILE", file)
	t.Setenv("AZURE_CLIENT_ID", "client")
	t.Setenv("AZURE_TENANT_ID", "tenant")
	t.Setenv("AZURE_AUTHORITY_HOST", "https://login.microsoftonline.com/")
	refuse := false
	login := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		const at = "https://login.microsoftonline.com/tenant"
		switch {
		case strings.HasSuffix(r.URL.Path, "/discovery/instance"):
			_, _ = fmt.Fprintf(w, `{"tenant_discovery_endpoint": "%s/v2.0/.well-known/openid-configuration", "metadata": [{"preferred_network": "login.microsoftonline.com", "preferred_cache": "login.windows.net", "aliases": ["login.microsoftonline.com"]}]}`, at)
		case strings.HasSuffix(r.URL.Path, "/openid-configuration"):
			_, _ = fmt.Fprintf(w, `{"authorization_endpoint": "%[1]s/authorize", "token_endpoint": "%[1]s/oauth2/v2.0/token", "issuer": "%[1]s/v2.0"}`, at)
		case refuse || r.PostFormValue("client_assertion") != "projected" || r.PostFormValue("scope") == "" || !strings.Contains(r.PostFormValue("scope"), token.AzureDatabase):
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = fmt.Fprintf(w, `{"error": "invalid_client", "error_description": "%s"}`, r.PostFormValue("client_assertion"))
		default:
			_, _ = fmt.Fprint(w, `{"access_token": "entra", "expires_in": 3600, "token_type": "Bearer"}`)
		}
	}))
	defer login.Close()
	client := &http.Client{Transport: toward(strings.TrimPrefix(login.URL, "http://"))}
	got, err := token.EntraID(token.AzureDatabase, client).Token(t.Context())
	if err != nil || got.AccessToken != "entra" || time.Until(got.Expiry) < 50*time.Minute {
		t.Errorf("%v, %v", got, err)
	}
	refuse = true
	if _, err := token.EntraID(token.AzureDatabase, client).Token(t.Context()); err == nil || !strings.Contains(err.Error(), "Entra ID") || strings.Contains(err.Error(), "projected") {
		t.Errorf("a refusal: %v; want an error without what was sent", err)
	}
}

// A machine of Azure or Google whose identity is taken away: an error that
// repeats nothing of the answer.
func TestNoIdentity(t *testing.T) {
	testenv.NewCloud(t, time.Hour).Break()
	for want, source := range map[string]token.Source{"Entra ID": token.EntraID(token.EventHubs("nobody.example"), nil), "Google": token.CloudSQL()} {
		if got, err := source.Token(t.Context()); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), testenv.CloudSecretKey) {
			t.Errorf("%v, %v; want an error with %s", got, err, want)
		}
	}
}

// toward sends every request to one address.
type toward string

func (to toward) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL.Scheme, r.URL.Host = "http", string(to)
	return http.DefaultTransport.RoundTrip(r)
}

// The program's output is the token; one that fails, hangs or writes something
// else is an error with the setting's name and nothing of the output.
func TestCommand(t *testing.T) {
	script := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(script, []byte("#!/bin/sh\neval \"$RUN\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for run, want := range map[string]string{
		`echo " abc.def "`:            "",
		`echo hunter2; exit 3`:        "exit status 3",
		`echo hunter2 >&2; exit 3`:    "exit status 3",
		`echo hunter2; echo hunter2`:  "one line",
		`true`:                        "one line",
		`echo hunter2; exec sleep 60`: "in time",
		`echo hunter2; exec yes`:      "more than",
	} {
		t.Setenv("RUN", run)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		began := time.Now()
		got, err := token.Command("--token-command", script+"  --argument").Token(ctx)
		cancel()
		if time.Since(began) > 5*time.Second {
			t.Errorf("%s: took %v", run, time.Since(began))
		}
		if want == "" {
			if err != nil || got.AccessToken != "abc.def" || !got.Expiry.IsZero() {
				t.Errorf("%s: %v, %v", run, got, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--token-command") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v; want an error with %q and no output", run, err, want)
		}
	}
}
