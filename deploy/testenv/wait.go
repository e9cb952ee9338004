package testenv

import (
	"net"
	"testing"
	"time"
)

// patience is how long another process may take for anything on a machine that
// is very busy.
const patience = 90 * time.Second

// Eventually waits for what another process brings about, which cannot signal.
// Inside a process wait for a signal instead.
func Eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// FreeAddress is a host and port on loopback that nobody listens on yet.
func FreeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}
