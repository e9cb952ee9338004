package deploy_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"oncewatch/deploy/testenv"
)

// secured is a copy of deploy/prometheus with certificates, passwords and rules
// put where its comments expect them.
type secured struct {
	dir                        string
	roots                      *x509.CertPool
	scrapePassword, uiPassword string
}

func secure(t *testing.T) secured {
	t.Helper()
	s := secured{dir: t.TempDir(), roots: x509.NewCertPool(), scrapePassword: "scrape-me-4711", uiPassword: "show-me-4712"}
	for _, sub := range []string{"tls", "secrets", "rules"} {
		if err := os.Mkdir(filepath.Join(s.dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	ca, caKey := certificate(t, &x509.Certificate{Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true}, nil, nil)
	s.roots.AddCert(ca)
	s.write(t, "tls/ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw})))
	for _, name := range []string{"server", "prometheus"} {
		cert, key := certificate(t, &x509.Certificate{Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, ca, caKey)
		raw, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		s.write(t, "tls/"+name+".crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})))
		s.write(t, "tls/"+name+".key", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw})))
	}
	s.write(t, "secrets/scrape-password", s.scrapePassword)
	s.write(t, "secrets/alertmanager-password", "unused")
	s.write(t, "rules/oncewatch.rules.yml", output(t, exec.Command(program(t, "oncewatch"), "rules")))
	hash := regexp.MustCompile(`\$2[aby]\$\S+`)
	for file, password := range map[string]string{"exporter-web.yml": s.scrapePassword, "web.yml": s.uiPassword} {
		hashed, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		s.write(t, file, hash.ReplaceAllLiteralString(readFile(t, "deploy/prometheus/"+file), string(hashed)))
	}
	return s
}

func (s secured) path(name string) string { return filepath.Join(s.dir, name) }

func (s secured) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(s.path(name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func certificate(t *testing.T, template, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	if parent == nil {
		parent, parentKey = template, key
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// client knows the CA; without a user it is anonymous.
func (s secured) client(user, password string) *http.Client {
	return &http.Client{Timeout: 10 * time.Second, Transport: authorized{
		&http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.roots, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}, user, password,
	}}
}

type authorized struct {
	next           http.RoundTripper
	user, password string
}

func (a authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	if a.user != "" {
		r = r.Clone(r.Context())
		r.SetBasicAuth(a.user, a.password)
	}
	return a.next.RoundTrip(r)
}

// The example as it is shipped: the exporter with its web configuration, a
// Prometheus with its own, and the scrape between the two.
func TestPrometheusExample(t *testing.T) {
	t.Parallel()
	s := secure(t)
	exporter, ui := testenv.FreeAddress(t), testenv.FreeAddress(t)
	config := readFile(t, "deploy/prometheus/prometheus.yml")
	if !strings.Contains(config, "[oncewatch.example:10077]") {
		t.Fatal("the example has another target")
	}
	config = strings.ReplaceAll(config, "oncewatch.example:10077", exporter)
	config = strings.ReplaceAll(config, "15s", "1s")
	s.write(t, "prometheus.yml", config)

	out := output(t, testenv.Tool(t, "promtool", "check", "config", s.path("prometheus.yml")))
	if !strings.Contains(out, "1 rule files found") {
		t.Errorf("promtool check config: %s", out)
	}
	output(t, testenv.Tool(t, "promtool", "check", "web-config", s.path("web.yml"), s.path("exporter-web.yml")))

	start(t, exec.Command(program(t, "oncewatch"), "serve", "--web.listen-address="+exporter, "--web.config.file="+s.path("exporter-web.yml"),
		"--kafka.brokers=127.0.0.1:1", "--postgres.dsn=postgres://nobody@127.0.0.1:1/none"))
	start(t, testenv.Tool(t, "prometheus", "--config.file="+s.path("prometheus.yml"), "--web.config.file="+s.path("web.yml"),
		"--web.listen-address="+ui, "--storage.tsdb.path="+s.path("data"), "--log.level=warn"))

	metrics := "https://" + exporter + "/metrics"
	testenv.Eventually(t, "the exporter answers its scraper", func() bool {
		return status(s.client("prometheus", s.scrapePassword), metrics) == http.StatusOK
	})
	if got := status(s.client("prometheus", "wrong"), metrics); got != http.StatusUnauthorized {
		t.Errorf("a wrong password: %d", got)
	}
	if got := status(s.client("", ""), metrics); got != http.StatusUnauthorized {
		t.Errorf("no password: %d", got)
	}

	grafana := s.client("grafana", s.uiPassword)
	targets := func() map[string]string {
		resp, err := grafana.Get("https://" + ui + "/api/v1/targets?state=active")
		if err != nil {
			return nil
		}
		defer func() { _ = resp.Body.Close() }()
		var answer struct {
			Data struct {
				ActiveTargets []struct {
					ScrapePool, Health, LastError string
				}
			}
		}
		if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
			return nil
		}
		health := map[string]string{}
		for _, target := range answer.Data.ActiveTargets {
			health[target.ScrapePool] = target.Health
		}
		return health
	}
	testenv.Eventually(t, "Prometheus scrapes the exporter over TLS with its password", func() bool { return targets()["oncewatch"] == "up" })
	if got := status(s.client("", ""), "https://"+ui+"/graph"); got != http.StatusUnauthorized {
		t.Errorf("Prometheus without a password: %d", got)
	}
}
