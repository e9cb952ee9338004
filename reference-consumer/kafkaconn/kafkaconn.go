// Package kafkaconn holds the flags that say how to reach the brokers.
package kafkaconn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Config of a connection; the tags are kong's.
type Config struct {
	Brokers  []string `name:"brokers" default:"localhost:9092" placeholder:"HOST:PORT" help:"Kafka brokers to start from."`
	ClientID string   `name:"client-id" default:"reference-consumer" help:"Client id shown on the brokers."`
	TLS      TLS      `embed:"" prefix:"tls."`
	SASL     SASL     `embed:"" prefix:"sasl."`
}

// TLS of the connection.
type TLS struct {
	Enabled    bool   `name:"enabled" help:"Connect to the brokers with TLS."`
	CAFile     string `name:"ca-file" type:"path" help:"Certificates to trust; default the system's."`
	CertFile   string `name:"cert-file" type:"path" help:"Client certificate for mutual TLS."`
	KeyFile    string `name:"key-file" type:"path" help:"Key of the client certificate."`
	ServerName string `name:"server-name" help:"Name to expect in the brokers' certificates."`
	Insecure   bool   `name:"insecure-skip-verify" help:"Do not check the brokers' certificates."`
}

// SASL authentication.
type SASL struct {
	Mechanism    string `name:"mechanism" enum:",PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER" default:"" help:"PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER."`
	Username     string `name:"username" help:"User name."`
	Password     string `name:"password" help:"Password; better in the environment or a file."`
	PasswordFile string `name:"password-file" type:"path" help:"File that holds the password."`
	TokenFile    string `name:"oauth-token-file" type:"path" help:"File that holds the bearer token; read at each authentication."`

	TokenURL         string   `name:"oauth-token-url" placeholder:"URL" help:"Token endpoint of OAUTHBEARER (grant type client_credentials), instead of a token file."`
	ClientID         string   `name:"oauth-client-id" help:"Client id at the token endpoint."`
	ClientSecret     string   `name:"oauth-client-secret" help:"Client secret at the token endpoint; better in the environment or a file."`
	ClientSecretFile string   `name:"oauth-client-secret-file" type:"path" help:"File with the client secret, read again for every token."`
	Scopes           []string `name:"oauth-scopes" help:"Scopes to ask the token endpoint for."`
}

// Options for a client.
func (c Config) Options() ([]kgo.Opt, error) {
	if len(c.Brokers) == 0 {
		return nil, errors.New("no broker given: set --kafka.brokers=HOST:PORT,…")
	}
	opts := []kgo.Opt{kgo.SeedBrokers(c.Brokers...)}
	if c.ClientID != "" {
		opts = append(opts, kgo.ClientID(c.ClientID))
	}
	if c.TLS != (TLS{}) {
		t, err := c.TLS.config()
		if err != nil {
			return nil, err
		}
		opts = append(opts, kgo.DialTLSConfig(t))
	}
	if c.SASL.Mechanism != "" {
		m, err := c.SASL.mechanism()
		if err != nil {
			return nil, err
		}
		opts = append(opts, kgo.SASL(m))
	}
	return opts, nil
}

func (t TLS) config() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName, InsecureSkipVerify: t.Insecure}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("--kafka.tls.ca-file: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--kafka.tls.ca-file: %s holds no PEM certificate", t.CAFile)
		}
	}
	if (t.CertFile == "") != (t.KeyFile == "") {
		return nil, errors.New("--kafka.tls.cert-file and --kafka.tls.key-file belong together: set both")
	}
	if t.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("--kafka.tls.cert-file: %w", err)
		}
		cfg.Certificates = []tls.Certificate{cert}
	}
	return cfg, nil
}

func (s SASL) mechanism() (sasl.Mechanism, error) {
	if s.Mechanism == "OAUTHBEARER" {
		if (s.TokenFile == "") == (s.TokenURL == "") {
			return nil, errors.New("OAUTHBEARER needs either --kafka.sasl.oauth-token-file or --kafka.sasl.oauth-token-url")
		}
		if s.TokenURL != "" {
			return s.endpoint()
		}
		return oauth.Oauth(func(context.Context) (oauth.Auth, error) {
			token, err := os.ReadFile(s.TokenFile)
			if err != nil {
				return oauth.Auth{}, fmt.Errorf("--kafka.sasl.oauth-token-file: %w", err)
			}
			return oauth.Auth{Token: strings.TrimSpace(string(token))}, nil
		}), nil
	}
	password := s.Password
	if s.PasswordFile != "" {
		b, err := os.ReadFile(s.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("--kafka.sasl.password-file: %w", err)
		}
		password = strings.TrimRight(string(b), "\r\n")
	}
	if s.Username == "" || password == "" {
		return nil, fmt.Errorf("%s needs --kafka.sasl.username and a password (--kafka.sasl.password-file)", s.Mechanism)
	}
	switch s.Mechanism {
	case "PLAIN":
		return plain.Auth{User: s.Username, Pass: password}.AsMechanism(), nil
	case "SCRAM-SHA-256":
		return scram.Auth{User: s.Username, Pass: password}.AsSha256Mechanism(), nil
	case "SCRAM-SHA-512":
		return scram.Auth{User: s.Username, Pass: password}.AsSha512Mechanism(), nil
	}
	return nil, fmt.Errorf("unknown SASL mechanism %q", s.Mechanism)
}
