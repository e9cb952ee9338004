// Package retry holds what every loop that tries again needs: a wait that ends
// with its context, and a backoff.
package retry

import (
	"context"
	"math/rand/v2"
	"time"
)

// Wait for d, or until ctx ends, whose error it then returns.
func Wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Backoff is the wait after the nth failure (from 1): base, doubled with each
// further failure up to most, of which a random half is left out so that those
// that failed together do not come back together.
func Backoff(base, most time.Duration, n int) time.Duration {
	d := min(base<<min(max(n-1, 0), 20), most)
	if d <= 0 { // the shift overflowed
		d = most
	}
	return d/2 + rand.N(d/2+1)
}
