package kafkaconn

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// selfSigned is a server's certificate for 127.0.0.1 and the file a client
// trusts it by.
func selfSigned(t *testing.T) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "broker"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, file
}

func list(t *testing.T, c Config) error {
	t.Helper()
	opts, err := c.Options()
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
	cert, ca := selfSigned(t)
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
	trusted := TLS{CAFile: ca}
	for name, c := range map[string]struct {
		tls  TLS
		sasl SASL
		ok   bool
	}{
		"plain":              {trusted, SASL{Mechanism: "PLAIN", Username: "plain", Password: "secret-1"}, true},
		"scram-256, file":    {trusted, SASL{Mechanism: "SCRAM-SHA-256", Username: "scram", PasswordFile: password}, true},
		"scram-512":          {trusted, SASL{Mechanism: "SCRAM-SHA-512", Username: "scram5", Password: "secret-5"}, true},
		"unchecked":          {TLS{Insecure: true}, SASL{Mechanism: "PLAIN", Username: "plain", Password: "secret-1"}, true},
		"wrong password":     {trusted, SASL{Mechanism: "PLAIN", Username: "plain", Password: "secret-9"}, false},
		"untrusted":          {TLS{Enabled: true}, SASL{Mechanism: "PLAIN", Username: "plain", Password: "secret-1"}, false},
		"wrong name":         {TLS{CAFile: ca, ServerName: "elsewhere"}, SASL{Mechanism: "PLAIN", Username: "plain", Password: "secret-1"}, false},
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

func TestUnusableFlags(t *testing.T) {
	for want, c := range map[string]Config{
		"--kafka.brokers":                 {},
		"--kafka.tls.ca-file":             {Brokers: []string{"x:1"}, TLS: TLS{CAFile: "/does/not/exist"}},
		"belong together":                 {Brokers: []string{"x:1"}, TLS: TLS{CertFile: "cert.pem"}},
		"--kafka.sasl.password-file":      {Brokers: []string{"x:1"}, SASL: SASL{Mechanism: "PLAIN", Username: "u", PasswordFile: "/does/not/exist"}},
		"--kafka.sasl.oauth-token-file":   {Brokers: []string{"x:1"}, SASL: SASL{Mechanism: "OAUTHBEARER"}},
		"unknown SASL mechanism \"SHA1\"": {Brokers: []string{"x:1"}, SASL: SASL{Mechanism: "SHA1", Username: "u", Password: "p"}},
	} {
		if _, err := c.Options(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
