package kafkaconn

import (
	"context"
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"oncewatch/deploy/testenv"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

func list(t *testing.T, c Config) error {
	t.Helper()
	opts, err := c.Options(time.Second, nil)
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(append(opts, kgo.RequestRetries(1), kgo.RetryTimeout(3*time.Second))...)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err = kadm.NewClient(client).ListTopics(ctx)
	return err
}

func TestTLSAndSASL(t *testing.T) {
	authority := testenv.NewAuthority(t)
	authority.Sign("broker")
	ca := authority.Path("authority", "crt")
	cert, err := tls.LoadX509KeyPair(authority.Path("broker", "crt"), authority.Path("broker", "key"))
	if err != nil {
		t.Fatal(err)
	}
	k, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.TLS(&tls.Config{Certificates: []tls.Certificate{cert}}), kfake.EnableSASL(),
		kfake.Superuser("PLAIN", "plain", "secret-1"), kfake.Superuser("SCRAM-SHA-256", "scram", "secret-2"), kfake.Superuser("SCRAM-SHA-512", "scram5", "secret-5"))
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("secret-2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	trusted := TLS{Enabled: true, CAFile: ca}
	for name, c := range map[string]struct {
		tls  TLS
		sasl SASL
		ok   bool
	}{
		"plain":              {trusted, SASL{Mechanism: "PLAIN", Username: "plain", Password: "secret-1"}, true},
		"scram-256, file":    {trusted, SASL{Mechanism: "SCRAM-SHA-256", Username: "scram", PasswordFile: password}, true},
		"scram-512":          {trusted, SASL{Mechanism: "SCRAM-SHA-512", Username: "scram5", Password: "secret-5"}, true},
		"unchecked":          {TLS{Enabled: true, InsecureSkipVerify: true}, SASL{Mechanism: "PLAIN", Username: "plain", Password: "secret-1"}, true},
		"wrong password":     {trusted, SASL{Mechanism: "PLAIN", Username: "plain", Password: "secret-9"}, false},
		"untrusted":          {TLS{Enabled: true}, SASL{Mechanism: "PLAIN", Username: "plain", Password: "secret-1"}, false},
		"wrong name":         {TLS{Enabled: true, CAFile: ca, ServerName: "elsewhere"}, SASL{Mechanism: "PLAIN", Username: "plain", Password: "secret-1"}, false},
		"no TLS, no SASL":    {TLS{}, SASL{}, false},
		"no password at all": {trusted, SASL{Mechanism: "PLAIN", Username: "plain"}, false},
	} {
		err := list(t, Config{Brokers: k.ListenAddrs(), TLS: c.tls, SASL: c.sasl})
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret-") {
			t.Errorf("%s: the error shows the password: %v", name, err)
		}
	}
}

func TestMistakesNameTheFlagAndTheRemedy(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		change func(*Config)
		want   []string
	}{
		{func(c *Config) { c.Brokers = nil }, []string{"--kafka.brokers", "HOST:PORT"}},
		{func(c *Config) { c.Brokers = []string{"kafka-1"} }, []string{"--kafka.brokers", `"kafka-1"`, "kafka-1:9092"}},
		{func(c *Config) { c.Brokers = []string{"kafka-1:http"} }, []string{"--kafka.brokers", `"kafka-1:http"`, "65535"}},
		{func(c *Config) { c.TLS.CAFile = "/ca" }, []string{"--kafka.tls.ca-file", "--kafka.tls.enabled"}},
		{func(c *Config) { c.TLS = TLS{Enabled: true, CertFile: "/c"} }, []string{"--kafka.tls.key-file", "both"}},
		{func(c *Config) { c.TLS = TLS{Enabled: true, CAFile: "/nowhere/ca"} }, []string{"--kafka.tls.ca-file", "/nowhere/ca"}},
		{func(c *Config) { c.TLS = TLS{Enabled: true, CAFile: empty} }, []string{"--kafka.tls.ca-file", "no certificate", "PEM"}},
		{func(c *Config) { c.TLS = TLS{Enabled: true, CertFile: empty, KeyFile: empty} }, []string{"--kafka.tls.cert-file"}},
		{func(c *Config) { c.SASL.Mechanism = "GSSAPI" }, []string{"--kafka.sasl.mechanism", "GSSAPI", "SCRAM-SHA-512"}},
		{func(c *Config) { c.SASL.Username = "u" }, []string{"--kafka.sasl.username", "--kafka.sasl.mechanism"}},
		{func(c *Config) { c.SASL.Mechanism = Plain }, []string{"PLAIN", "needs --kafka.sasl.username"}},
		{func(c *Config) { c.SASL = SASL{Mechanism: Plain, Username: "u"} }, []string{"needs --kafka.sasl.password or --kafka.sasl.password-file"}},
		{func(c *Config) {
			c.SASL = SASL{Mechanism: Plain, Username: "u", Password: "hunter2", PasswordFile: empty}
		}, []string{"--kafka.sasl.password", "remove one"}},
		{func(c *Config) {
			c.SASL = SASL{Mechanism: ScramSHA256, Username: "u", PasswordFile: empty}
		}, []string{"--kafka.sasl.password-file", "is empty"}},
		{func(c *Config) {
			c.SASL = SASL{Mechanism: ScramSHA256, Username: "u", Password: "hunter2", OAuthClientID: "x"}
		}, []string{"--kafka.sasl.oauth-client-id", "SCRAM-SHA-256", "remove one"}},
		{func(c *Config) { c.SASL.Mechanism = OAuthBearer }, []string{"OAUTHBEARER", "--kafka.sasl.oauth-token-url"}},
		{func(c *Config) {
			c.SASL = SASL{Mechanism: OAuthBearer, OAuthTokenFile: "/nowhere/t"}
		}, []string{"--kafka.sasl.oauth-token-file", "/nowhere/t"}},
	} {
		c := Config{Brokers: []string{"kafka-1:9092"}}
		tt.change(&c)
		_, err := c.Options(time.Second, nil)
		if err == nil {
			t.Errorf("%v: no error for %+v", tt.want, c)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not say %q", err, want)
			}
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q tells the secret", err)
		}
	}
}
