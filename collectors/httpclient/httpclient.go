// Package httpclient asks what is configured over HTTP, and nobody else: it
// follows no redirect to another host, sends no referrer, reads its secrets
// from files anew for each request, and tells nothing in an error that the
// other side wrote.
package httpclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"

	"github.com/prometheus/common/config"

	"oncewatch/collectors/poll"
)

// Config is how a server is asked. Its flags stand below a prefix such as
// "consumer.".
type Config struct {
	TLS             TLS               `embed:"" prefix:"tls."`
	Username        string            `name:"username" help:"User of basic authentication."`
	PasswordFile    string            `name:"password-file" type:"path" help:"File with its password; read again for each request."`
	BearerTokenFile string            `name:"bearer-token-file" type:"path" help:"File with a bearer token; read again for each request."`
	Headers         map[string]string `name:"headers" placeholder:"NAME=VALUE" help:"Headers to send along, for example X-Scope-OrgID=team."`
}

// TLS is how an https address is verified, and what is shown to it.
type TLS struct {
	CAFile             string `name:"ca-file" type:"path" help:"Certificates that the server's is verified with. Default: the system's."`
	CertFile           string `name:"cert-file" type:"path" help:"Client certificate to show."`
	KeyFile            string `name:"key-file" type:"path" help:"Its key."`
	ServerName         string `name:"server-name" help:"Name in the server's certificate, where it is not the address's."`
	InsecureSkipVerify bool   `name:"insecure-skip-verify" help:"Do not verify the server's certificate."`
}

// Validate names what cannot be used together; prefix is that of the flags, such
// as "--consumer.".
func (c Config) Validate(prefix string) error {
	var errs []error
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		errs = append(errs, fmt.Errorf("%stls.cert-file and %stls.key-file: one is set without the other", prefix, prefix))
	}
	if c.BearerTokenFile != "" && (c.Username != "" || c.PasswordFile != "") {
		errs = append(errs, fmt.Errorf("%sbearer-token-file and %susername: set one of the two", prefix, prefix))
	}
	if (c.PasswordFile != "") != (c.Username != "") {
		errs = append(errs, fmt.Errorf("%susername and %spassword-file: one is set without the other", prefix, prefix))
	}
	if err := c.headers().Validate(); err != nil {
		errs = append(errs, fmt.Errorf("%sheaders: %w", prefix, err))
	}
	return errors.Join(errs...)
}

func (c Config) headers() *config.Headers {
	h := &config.Headers{Headers: map[string]config.Header{}}
	for name, value := range c.Headers {
		h.Headers[http.CanonicalHeaderKey(name)] = config.Header{Secrets: []config.Secret{config.Secret(value)}}
	}
	return h
}

// New makes a client. It reads the certificates once, so that a file that is
// not there is an error of the configuration.
func New(c Config, prefix string) (*http.Client, error) {
	cc := config.HTTPClientConfig{
		TLSConfig: config.TLSConfig{
			CAFile: c.TLS.CAFile, CertFile: c.TLS.CertFile, KeyFile: c.TLS.KeyFile,
			ServerName: c.TLS.ServerName, InsecureSkipVerify: c.TLS.InsecureSkipVerify,
		},
		HTTPHeaders: c.headers(),
	}
	if c.BearerTokenFile != "" {
		cc.Authorization = &config.Authorization{Type: "Bearer", CredentialsFile: c.BearerTokenFile}
	}
	if c.Username != "" {
		cc.BasicAuth = &config.BasicAuth{Username: c.Username, PasswordFile: c.PasswordFile}
	}
	rt, err := config.NewRoundTripperFromConfig(cc, "oncewatch", config.WithUserAgent("oncewatch"), config.WithDialContextFunc((&net.Dialer{}).DialContext))
	if err != nil {
		return nil, fmt.Errorf("%stls.*: %w", prefix, err)
	}
	return &http.Client{Transport: rt, CheckRedirect: sameHost}, nil
}

var (
	errElsewhere = errors.New("it redirects to another host or scheme, which is not followed: configure the address itself")
	errTooMany   = errors.New("it redirects again and again: configure the address itself")
)

func sameHost(req *http.Request, via []*http.Request) error {
	first := via[0].URL
	if req.URL.Host != first.Host || req.URL.Scheme != first.Scheme {
		return errElsewhere
	}
	if len(via) > 3 {
		return errTooMany
	}
	req.Header.Del("Referer") // it holds the query, and that may hold a token
	return nil
}

// Redacted is an address without what may be a secret: neither user nor query.
func Redacted(raw string) string {
	if u, err := url.Parse(raw); err == nil && u.Host != "" {
		return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
	}
	return "…"
}

// Get asks an address. The caller closes the answer's body; its status is 200.
// Errors are of kind unreachable, denied, timeout or malformed and name the
// address without its secrets.
func Get(ctx context.Context, client *http.Client, address, accept string) (*http.Response, error) {
	resp, err := Ask(ctx, client, address, accept)
	if err != nil || resp.StatusCode == http.StatusOK {
		return resp, err
	}
	_ = resp.Body.Close()
	status := fmt.Errorf("HTTP %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	switch resp.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return nil, fail(address, "denied", fmt.Errorf("%w: see username, password-file, bearer-token-file and tls.cert-file", status))
	}
	return nil, fail(address, "failed", status)
}

// Ask is Get for who reads answers of any status.
func Ask(ctx context.Context, client *http.Client, address, accept string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, fail(address, "malformed", errors.New("the address cannot be used"))
	}
	req.Header.Set("Accept", accept)
	resp, err := client.Do(req)
	if err != nil {
		kind, err := cause(err)
		return nil, fail(address, kind, err)
	}
	return resp, nil
}

func fail(address, kind string, err error) error {
	return &poll.KindError{Kind: kind, Err: fmt.Errorf("%s: %w", Redacted(address), err)}
}

// cause is an error without the address, which may hold a password, and without
// anything that the other side wrote.
func cause(err error) (kind string, _ error) {
	var (
		dial      *net.OpError
		name      *net.DNSError
		file      *fs.PathError
		unknown   x509.UnknownAuthorityError
		cert      *tls.CertificateVerificationError
		plain     tls.RecordHeaderError
		alert     tls.AlertError
		timeout   net.Error
		unhealthy *url.Error
	)
	if errors.As(err, &unhealthy) && errors.Is(unhealthy.Err, http.ErrSchemeMismatch) {
		return "malformed", errors.New("it speaks plain HTTP: write http://")
	}
	switch {
	case errors.Is(err, errElsewhere):
		return "denied", errElsewhere
	case errors.Is(err, errTooMany):
		return "malformed", errTooMany
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "timeout", context.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return "timeout", context.Canceled
	case errors.As(err, &unknown):
		return "denied", fmt.Errorf("%w: name its authority with tls.ca-file", unknown)
	case errors.As(err, &cert):
		return "denied", fmt.Errorf("%w: see tls.ca-file and tls.server-name", cert)
	case errors.As(err, &plain):
		return "malformed", errors.New("it does not speak TLS: write http://")
	case errors.As(err, &alert):
		return "denied", fmt.Errorf("it refuses the TLS handshake (%w): see tls.cert-file", alert)
	case errors.As(err, &file):
		return "denied", file
	case errors.As(err, &name):
		return "unreachable", fmt.Errorf("lookup %s: no such host", name.Name)
	case errors.As(err, &dial):
		return "unreachable", dial
	}
	return "malformed", errors.New("its answer is no HTTP, or ended early")
}
