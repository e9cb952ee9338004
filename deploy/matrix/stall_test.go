package matrix

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

// tolerable is how long the machine may stall while a scenario is played:
// three minutes of the rules, before which none of them fires.
func tolerable() time.Duration { return minutes(3) }

// stalls notices when this process gets no time to run.
type stalls struct {
	mu  sync.Mutex
	all []stall
}

type stall struct {
	at   time.Time
	took time.Duration
}

func watchStalls(t *testing.T) *stalls {
	s := &stalls{}
	done := make(chan struct{})
	t.Cleanup(func() { close(done) })
	go func() {
		const every = 100 * time.Millisecond
		tick := time.NewTicker(every)
		defer tick.Stop()
		last := time.Now()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			now := time.Now()
			if took := now.Sub(last); took > 5*every {
				s.mu.Lock()
				s.all = append(s.all, stall{now, took})
				s.mu.Unlock()
			}
			last = now
		}
	}()
	return s
}

// worst is the longest stall between two times.
func (s *stalls) worst(from, to time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var worst time.Duration
	for _, one := range s.all {
		if one.at.After(from) && one.at.Before(to.Add(one.took)) {
			worst = max(worst, one.took)
		}
	}
	return worst
}

// gap is the longest time that Prometheus did not get to scrape a cluster's
// exporter: between two samples of up, whatever they say.
func (p *prometheus) gap(ctx context.Context, cluster string, from, to time.Time) (time.Duration, error) {
	var worst time.Duration
	err := p.series(ctx, fmt.Sprintf(`timestamp(up{cluster=%q,job="oncewatch"})`, cluster), from, to, func(_ map[string]string, _ []time.Time, values []float64) {
		last := float64(from.UnixMilli()) / 1000
		for _, v := range slices.Concat(values, []float64{float64(to.UnixMilli()) / 1000}) {
			worst = max(worst, time.Duration((v-last)*float64(time.Second)))
			last = max(last, v)
		}
	})
	return worst, err
}
