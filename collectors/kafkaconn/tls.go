package kafkaconn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// TLS is the flags for encrypted connections to the brokers.
type TLS struct {
	Enabled            bool   `help:"Connect to the brokers with TLS."`
	CAFile             string `name:"ca-file" placeholder:"FILE" help:"PEM file of the authorities that sign the brokers' certificates. Default: the system's. Read again for every connection, as the other two files are."`
	CertFile           string `placeholder:"FILE" help:"PEM file of the client certificate, for mutual TLS."`
	KeyFile            string `placeholder:"FILE" help:"PEM file of the client certificate's key."`
	ServerName         string `placeholder:"NAME" help:"Name to expect in the brokers' certificates. Default: the host they are reached by."`
	InsecureSkipVerify bool   `help:"Accept any certificate of a broker. For tests only."`
}

func (t TLS) validate() error {
	if !t.Enabled {
		for name, set := range map[string]bool{"ca-file": t.CAFile != "", "cert-file": t.CertFile != "", "key-file": t.KeyFile != "", "server-name": t.ServerName != "", "insecure-skip-verify": t.InsecureSkipVerify} {
			if set {
				return fmt.Errorf("--kafka.tls.%s is set but TLS is off: add --kafka.tls.enabled", name)
			}
		}
		return nil
	}
	if (t.CertFile == "") != (t.KeyFile == "") {
		return fmt.Errorf("--kafka.tls.cert-file and --kafka.tls.key-file go together: set both for mutual TLS, or neither")
	}
	_, err := t.config()
	return err
}

// dialer reads the files for every connection: certificates are renewed while
// we run.
func (t TLS) dialer(timeout time.Duration) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conf, err := t.config()
		if err != nil {
			return nil, err
		}
		d := tls.Dialer{NetDialer: &net.Dialer{Timeout: timeout}, Config: conf}
		conn, err := d.DialContext(ctx, network, address)
		var dial *net.OpError
		if errors.Is(err, context.DeadlineExceeded) && !errors.As(err, &dial) {
			// Connected: what does not speak TLS may wait for more for ever.
			err = fmt.Errorf("%s does not answer the TLS handshake: does this listener speak TLS? (--kafka.tls.enabled): %w", address, err)
		}
		return conn, err
	}
}

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
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("--kafka.tls.cert-file, --kafka.tls.key-file: %w", err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	return conf, nil
}
