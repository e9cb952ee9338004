package kafka

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncewatch/collectors/poll"
)

// requester sends a poll's requests: one to each broker concerned, at once,
// and none to a broker that has failed in this poll, so that one that hangs
// costs a poll one timeout and nobody else's answers.
type requester struct {
	client    *kgo.Client
	throttles *throttles

	mu   sync.Mutex
	sent int
	down map[int32]error
}

// requestTimeout is how long one broker may take for one request.
const requestTimeout = 3 * time.Second

// requestContext bounds one request so that a poll survives a broker that
// hangs: at most a third of what is left of the poll.
func requestContext(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := requestTimeout
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)/3)
	}
	return context.WithTimeout(ctx, limit)
}

// The requests a poll may send: so many for each broker and for the cluster.
// What is left of them after commits and bounds goes into looking at tails and
// dating records.
const (
	requestsPerBroker  = 6
	requestsPerCluster = 2
)

// affords says whether the poll may send as many more, in a cluster of so many
// brokers.
func (r *requester) affords(brokers int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sent+brokers <= requestsPerBroker*brokers+requestsPerCluster
}

func (r *requester) count(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent += n
}

// answers are a request's responses by broker, and the errors of those that
// refused this one request. Brokers that are down are in neither.
type answers[R kmsg.Response] struct {
	ok      map[int32]R
	refused map[int32]error
}

// ask sends each broker its request and waits for all.
func ask[R kmsg.Response](ctx context.Context, r *requester, requests map[int32]kmsg.Request) answers[R] {
	a := answers[R]{ok: map[int32]R{}, refused: map[int32]error{}}
	var (
		wg sync.WaitGroup
		mu sync.Mutex
	)
	for broker, req := range requests {
		if r.isDown(broker) {
			continue
		}
		r.count(1)
		wg.Go(func() {
			ctx, cancel := requestContext(ctx)
			defer cancel()
			resp, err := r.client.Broker(int(broker)).RetriableRequest(ctx, req)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				a.ok[broker] = resp.(R)
			case unreachable(err):
				r.setDown(broker, r.throttles.explain(broker, err))
			default:
				a.refused[broker] = fmt.Errorf("%s: %w", kmsg.NameForKey(req.Key()), err)
			}
		})
	}
	wg.Wait()
	return a
}

func (r *requester) isDown(broker int32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.down[broker] != nil
}

func (r *requester) setDown(broker int32, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down[broker] == nil {
		r.down[broker] = err
	}
}

// downProblems names the brokers that failed.
func (r *requester) downProblems() []poll.Problem {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []poll.Problem
	for broker, err := range r.down {
		out = append(out, problem(fmt.Sprintf("broker %d", broker), err))
	}
	slices.SortFunc(out, func(a, b poll.Problem) int { return strings.Compare(a.Entity, b.Entity) })
	return out
}
