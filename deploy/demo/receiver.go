package demo

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// receiver takes the confirmations that the outbox delivers.
type receiver struct {
	address string
	server  *http.Server
	// status is what it answers, where that is not 200.
	status atomic.Int64
	// deadly kills the relay that has sent a certain confirmation, before it
	// knows: the first one that came after it was set. With once, not again.
	deadly atomic.Bool
	once   atomic.Bool
	victim atomic.Value // string: its Idempotency-Key
	kill   atomic.Value // func(): of the relay that runs
}

func newReceiver(ctx context.Context) (*receiver, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the outbox: %w", err)
	}
	r := &receiver{address: l.Addr().String()}
	r.server = &http.Server{Handler: r, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = r.server.Serve(l) }() // ends with close
	return r, nil
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	_, _ = io.Copy(io.Discard, req.Body)
	if status := r.status.Load(); status != 0 {
		w.WriteHeader(int(status))
		return
	}
	key := req.Header.Get("Idempotency-Key")
	if r.deadly.Load() && (r.victim.CompareAndSwap(nil, key) || r.victim.Load() == key) {
		if r.once.Load() {
			r.deadly.Store(false)
		}
		if kill, ok := r.kill.Load().(func()); ok {
			kill()
		}
	}
}

func (r *receiver) close() { _ = r.server.Close() }
