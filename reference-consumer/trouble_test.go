//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/deploy/testenv"
	"oncewatch/reference-consumer/header"
	"oncewatch/reference-consumer/payments"
)

// place of a record in its topic.
type place struct {
	partition int32
	offset    int64
}

// tape reads a topic beside everybody, in no group, and keeps where each event
// was published.
type tape struct {
	t      *testing.T
	mu     sync.Mutex
	next   map[int32]int64
	where  map[string][]place
	poison map[string]bool
}

func newTape(t *testing.T, client []kgo.Opt, topic string) *tape {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.KeepControlRecords(),
		kgo.MetadataMaxAge(time.Second), kgo.MetadataMinAge(200 * time.Millisecond)}, client...)...)
	if err != nil {
		t.Fatal(err)
	}
	tp := &tape{t: t, next: map[int32]int64{}, where: map[string][]place{}, poison: map[string]bool{}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			cl.PollFetches(ctx).EachRecord(tp.keep)
		}
	}()
	t.Cleanup(func() { cancel(); <-done; cl.Close() })
	return tp
}

func (tp *tape) keep(r *kgo.Record) {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	tp.next[r.Partition] = r.Offset + 1
	for _, h := range r.Headers {
		if h.Key == header.EventID {
			id := string(h.Value)
			tp.where[id] = append(tp.where[id], place{r.Partition, r.Offset})
			var p payments.Payment
			if p.Parse(r.Value) != nil || p.Amount == 0 {
				tp.poison[id] = true
			}
		}
	}
}

// wait until the tape has a partition up to an offset.
func (tp *tape) wait(partition int32, upTo int64) {
	tp.t.Helper()
	testenv.Eventually(tp.t, fmt.Sprintf("the tape to hold %d/%d", partition, upTo), func() bool {
		tp.mu.Lock()
		defer tp.mu.Unlock()
		return tp.next[partition] >= upTo
	})
}

// cutter is a proxy in front of PostgreSQL that cuts or holds a connection now
// and then, exactly when a client sends COMMIT: before the server has it, in
// the middle of the message, before the answer; or it lets it through late.
type cutter struct {
	dsn  string
	port int
	n    atomic.Int64

	mu     sync.Mutex
	random *rand.Rand
}

func newCutter(t *testing.T, port int, seed uint64) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{port: port, random: rand.New(rand.NewPCG(seed, 2)), dsn: fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable", l.Addr())}
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { c.serve(ctx, client) })
		}
	})
	t.Cleanup(func() { cancel(); _ = l.Close(); all.Wait() })
	return c
}

func (c *cutter) serve(ctx context.Context, client net.Conn) {
	server, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", c.port))
	if err != nil {
		_ = client.Close()
		return
	}
	both := func() { _ = client.Close(); _ = server.Close() }
	defer both()
	stop := context.AfterFunc(ctx, both)
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(client, server)
		both()
	}()
	defer func() { <-done }()
	defer both()
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		b := buf[:n]
		if bytes.Contains(b, []byte("COMMIT\x00")) && c.chance() {
			switch c.choose(4) {
			case 0: // the server never hears of it
				return
			case 1: // half a message
				_, _ = server.Write(b[:n-n/2-1])
				return
			case 2: // its answer never comes
				_, _ = server.Write(b)
				time.Sleep(time.Duration(c.choose(20)) * time.Millisecond)
				return
			default: // late
				time.Sleep(time.Duration(c.choose(3000)) * time.Millisecond)
			}
		}
		if _, err := server.Write(b); err != nil {
			return
		}
	}
}

// chance says whether this COMMIT is in for trouble.
func (c *cutter) chance() bool {
	if c.choose(20) != 0 {
		return false
	}
	c.n.Add(1)
	return true
}

func (c *cutter) choose(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.random.IntN(n)
}
