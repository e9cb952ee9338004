package kafka

import (
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/collectors/poll"
)

// throttles remembers by how long brokers made the client wait for a quota: the
// client does wait, and what runs out of time meanwhile would seem slow.
type throttles struct {
	mu       sync.Mutex
	byBroker map[int32]throttle
}

type throttle struct {
	by time.Duration
	at time.Time
}

var _ kgo.HookBrokerThrottle = (*throttles)(nil)

// OnBrokerThrottle implements kgo.HookBrokerThrottle.
func (t *throttles) OnBrokerThrottle(broker kgo.BrokerMetadata, by time.Duration, _ bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byBroker == nil {
		t.byBroker = map[int32]throttle{}
	}
	t.byBroker[broker.NodeID] = throttle{by, time.Now()}
}

// explain says that a request failed because the broker throttles, where it did
// so within the last minute; anyBroker where it is not known which was asked.
func (t *throttles) explain(broker int32, err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, seen := range t.byBroker {
		if (id == broker || broker == anyBroker) && seen.by > 0 && time.Since(seen.at) < time.Minute+seen.by {
			return &poll.KindError{Kind: "throttled", Err: fmt.Errorf("throttled by a quota of broker %d, last by %v: raise the quota of oncewatch's user or client id, or --poll.interval and --poll.timeout: %w", id, seen.by, err)}
		}
	}
	return err
}

const anyBroker = -1
