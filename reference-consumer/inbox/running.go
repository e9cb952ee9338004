package inbox

import (
	"sync"
	"sync/atomic"
	"time"
)

// Running knows the handlers of a partition that run now, those that were left
// behind among them. The zero value is ready; safe for concurrent use.
type Running struct {
	mu    sync.Mutex
	calls map[*call]struct{}
}

// call is the handler call of one attempt.
type call struct {
	since atomic.Int64 // Unix nanoseconds; 0: none runs
	index atomic.Int64 // of the event
	left  atomic.Bool  // nobody waits for it any more
}

func (c *call) begin(index int) {
	c.index.Store(int64(index))
	c.since.Store(time.Now().UnixNano())
}

func (c *call) end() { c.since.Store(0) }

// running is how long the call has been running.
func (c *call) running() time.Duration {
	since := c.since.Load()
	if since == 0 {
		return 0
	}
	return max(time.Duration(time.Now().UnixNano()-since), 1)
}

// Oldest is how long the handler that runs the longest has been running; 0
// where none runs.
func (r *Running) Oldest() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	var oldest time.Duration
	for c := range r.calls {
		oldest = max(oldest, c.running())
	}
	return oldest
}

// Left is the number of handlers that were left behind and still run.
func (r *Running) Left() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for c := range r.calls {
		if c.left.Load() {
			n++
		}
	}
	return n
}

// track a call until the returned function is called.
func (r *Running) track(c *call) (done func()) {
	if r == nil {
		return func() {}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls == nil {
		r.calls = map[*call]struct{}{}
	}
	r.calls[c] = struct{}{}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.calls, c)
	}
}
