package kafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// config reads the files once, so that a mistake is known at start.
func (t TLS) config() (*tls.Config, error) {
	conf := &tls.Config{
		ServerName:         t.ServerName,
		InsecureSkipVerify: t.InsecureSkipVerify,
		MinVersion:         tls.VersionTLS12,
	}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("--kafka.tls.ca-file: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--kafka.tls.ca-file: %s holds no certificate: want a PEM file", t.CAFile)
		}
	}
	if t.CertFile != "" {
		// For every connection: certificates are renewed while we run.
		load := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
			if err != nil {
				return nil, fmt.Errorf("--kafka.tls.cert-file, --kafka.tls.key-file: %w", err)
			}
			return &pair, nil
		}
		if _, err := load(nil); err != nil {
			return nil, err
		}
		conf.GetClientCertificate = load
	}
	return conf, nil
}

// mechanism is nil where no authentication is configured. rejected is to be
// called when a broker does not accept what the mechanism offered.
func (s SASL) mechanism(now func() time.Time) (_ sasl.Mechanism, rejected func()) {
	rejected = func() {}
	password := func() (string, error) {
		if s.PasswordFile != "" {
			return readSecret("--kafka.sasl.password-file", s.PasswordFile)
		}
		return s.Password.Reveal(), nil
	}
	scramAuth := func(context.Context) (scram.Auth, error) {
		pass, err := password()
		return scram.Auth{User: s.Username, Pass: pass}, err
	}
	switch s.Mechanism {
	case Plain:
		return plain.Plain(func(context.Context) (plain.Auth, error) {
			pass, err := password()
			return plain.Auth{User: s.Username, Pass: pass}, err
		}), rejected
	case ScramSHA256:
		return scram.Sha256(scramAuth), rejected
	case ScramSHA512:
		return scram.Sha512(scramAuth), rejected
	case OAuthBearer:
		fetch := s.tokenFromEndpoint(http.DefaultClient)
		if s.OAuthTokenFile != "" {
			fetch = s.tokenFromFile
		}
		tokens := &tokenCache{fetch: fetch, now: now}
		return oauth.Oauth(func(ctx context.Context) (oauth.Auth, error) {
			token, err := tokens.get(ctx)
			return oauth.Auth{Token: token}, err
		}), tokens.forget
	}
	return nil, rejected
}
