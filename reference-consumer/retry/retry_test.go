package retry

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A backoff doubles up to its limit and lies between half of that and the
// whole, also where the doubling would overflow.
func TestBackoff(t *testing.T) {
	for n, whole := range map[int]time.Duration{0: time.Second, 1: time.Second, 2: 2 * time.Second, 4: 8 * time.Second, 5: 10 * time.Second, 1000: 10 * time.Second} {
		for range 100 {
			if d := Backoff(time.Second, 10*time.Second, n); d < whole/2 || d > whole {
				t.Fatalf("after %d failures: %s, want %s to %s", n, d, whole/2, whole)
			}
		}
	}
	if d := Backoff(365*24*time.Hour, 1000*24*time.Hour, 60); d < 500*24*time.Hour {
		t.Errorf("an overflow: %s", d)
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Wait(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want the context's error", err)
	}
	if err := Wait(t.Context(), 0); err != nil {
		t.Error(err)
	}
}
