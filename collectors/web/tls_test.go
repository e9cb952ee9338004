package web_test

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"oncewatch/collectors/web"
)

// pair writes a self-signed certificate of the name, and returns it.
func pair(t *testing.T, dir, name string) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	put := func(file, kind string, bytes []byte) {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("tls.key", "EC PRIVATE KEY", private)
	put("tls.crt", "CERTIFICATE", der)
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// A certificate that is renewed while the exporter runs serves the next
// connection; one that is broken costs connections, not the exporter.
func TestCertificateIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "web.yml")
	if err := os.WriteFile(file, []byte("tls_server_config:\n  cert_file: tls.crt\n  key_file: tls.key\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	old := pair(t, dir, "old")
	h := handler(t, fixed(1))
	url, end := start(t, web.Config{ConfigFile: file}, h)
	defer func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	}()
	if !strings.HasPrefix(url, "https://") {
		t.Fatalf("the address is %s", url)
	}
	get := func(trust *x509.Certificate, version uint16) (name string, err error) {
		pool := x509.NewCertPool()
		pool.AddCert(trust)
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: version, MaxVersion: version}}}
		resp, err := client.Get(url + "/metrics")
		if err != nil {
			return "", err
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode != http.StatusOK {
			return "", errors.New(resp.Status)
		}
		return resp.TLS.PeerCertificates[0].Subject.CommonName, nil
	}
	if name, err := get(old, tls.VersionTLS13); name != "old" || err != nil {
		t.Fatalf("%q %v", name, err)
	}
	if _, err := get(old, tls.VersionTLS11); err == nil {
		t.Error("TLS 1.1 is spoken")
	}
	renewed := pair(t, dir, "renewed")
	if name, err := get(renewed, tls.VersionTLS13); name != "renewed" || err != nil {
		t.Errorf("after the renewal: %q %v", name, err)
	}
	if _, err := get(old, tls.VersionTLS13); err == nil {
		t.Error("the old certificate is still served")
	}
	if err := os.WriteFile(filepath.Join(dir, "tls.crt"), []byte("half a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := get(renewed, tls.VersionTLS13); err == nil {
		t.Error("a broken certificate is served")
	}
	again := pair(t, dir, "again")
	if name, err := get(again, tls.VersionTLS12); name != "again" || err != nil {
		t.Errorf("after the repair: %q %v", name, err)
	}
	// What speaks no TLS is told nothing.
	resp, err := http.Get(strings.Replace(url, "https", "http", 1) + "/metrics")
	if err == nil {
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusOK || strings.Contains(string(body), "some_metric") {
			t.Errorf("in plain text: %s %s", resp.Status, body)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// A request is bounded in its size and in its time, and only reads.
func TestRequestsAreBounded(t *testing.T) {
	h := handler(t, fixed(1))
	url, end := start(t, web.Config{}, h)
	t.Cleanup(func() { // after the parallel parts
		if err := end(); err != nil {
			t.Error(err)
		}
	})
	// ask sends a request as it stands and returns the answer's status; empty
	// where the server hangs up without one.
	ask := func(request string) (status string, took time.Duration) {
		t.Helper()
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		began := time.Now()
		_ = conn.SetDeadline(began.Add(time.Minute))
		go func() { _, _ = io.WriteString(conn, request) }() // the server may stop reading
		status, err = bufio.NewReader(conn).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "reset") {
			t.Errorf("%.30q: %v", request, err)
		}
		return strings.TrimSpace(status), time.Since(began)
	}
	for name, c := range map[string]struct{ request, want string }{
		"header of 64 KiB":  {"GET /metrics HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n", "431"},
		"address of 64 KiB": {"GET /" + strings.Repeat("x", 64<<10) + " HTTP/1.1\r\nHost: x\r\n\r\n", "431"},
		"POST of 1 GB":      {"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\nx", "405"},
		"PUT to a probe":    {"PUT /-/ready HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", "405"},
		"no HTTP":           {"\x16\x03\x01 hello\r\n\r\n", "400"},
	} {
		t.Run(name, func(t *testing.T) {
			if status, _ := ask(c.request); !strings.Contains(status, c.want) {
				t.Errorf("%q, want %s", status, c.want)
			}
		})
	}
	t.Run("header that never ends", func(t *testing.T) {
		t.Parallel()
		if status, took := ask("GET /metrics HTTP/1.1\r\nHost: x\r\n"); took > 30*time.Second || strings.Contains(status, "200") {
			t.Errorf("%q after %s, want the connection closed after 5 s", status, took)
		}
	})
	t.Run("a scrape with a body that never comes", func(t *testing.T) {
		t.Parallel()
		if status, took := ask(fmt.Sprintf("GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", 1<<30)); took > 30*time.Second {
			t.Errorf("%q after %s, want an answer or the end within 10 s", status, took)
		}
	})
}
