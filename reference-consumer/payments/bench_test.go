package payments_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	"oncewatch/deploy/kafkaserver"
	"oncewatch/deploy/pgserver"
	"oncewatch/deploy/testenv"
	"oncewatch/reference-consumer/inbox"
	"oncewatch/reference-consumer/payments"
	"oncewatch/reference-consumer/produce"
	"oncewatch/reference-consumer/schema"
	"oncewatch/reference-consumer/stream"
	"oncewatch/reference-consumer/telemetry"
)

// The runbook's loop: one transaction an event, the duplicate found by
// catching the unique violation.
type runbook struct{ conn *pgx.Conn }

func (r runbook) handle(ctx context.Context, ev inbox.Event) (string, error) {
	var p payments.Payment
	if err := p.Parse(ev.Value); err != nil {
		return "", err
	}
	tx, err := r.conn.Begin(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	_, err = tx.Exec(ctx, `INSERT INTO processed_events (consumer_group, event_id, topic, partition, "offset") VALUES ($1,$2,$3,$4,$5)`,
		"g", ev.ID, ev.Topic, ev.Partition, ev.Offset)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "23505" {
		return "duplicate", nil
	}
	if err != nil {
		return "", err
	}
	if _, err := tx.Exec(ctx, `INSERT INTO ledger_entries (consumer_group, event_id, account, amount) VALUES ($1, $2, $3, $4)`, "g", ev.ID, p.Account, p.Amount); err != nil {
		return "", err
	}
	if _, err := tx.Exec(ctx, `INSERT INTO accounts AS a (account, balance, entries) VALUES ($1, $2, 1) ON CONFLICT (account) DO UPDATE SET balance = a.balance + excluded.balance, entries = a.entries + 1`, p.Account, p.Amount); err != nil {
		return "", err
	}
	return "processed", tx.Commit(ctx)
}

// deadLetter is what the loop has to do about poison.
func (r runbook) deadLetter(ctx context.Context, ev inbox.Event, cause error) error {
	_, err := r.conn.Exec(ctx, `INSERT INTO dead_letters (consumer_group, event_id, topic, topic_id, partition, "offset", reason, error, attempts, value)
VALUES ('g', $1, $2, gen_random_uuid(), $3, $4, 'data', $5, 1, $6)`, ev.ID, ev.Topic, ev.Partition, ev.Offset, cause.Error(), ev.Value)
	return err
}

// load is what a benchmark handles.
type load struct {
	partitions int
	duplicates float64
	poison     float64
}

func (l load) String() string {
	return fmt.Sprintf("partitions=%d/duplicates=%g%%/poison=%g%%", l.partitions, 100*l.duplicates, 100*l.poison)
}

// events of the load, n in all, by partition. Duplicates repeat an event of
// the partition's past; at 100 % every event has been applied before.
func (l load) events(n int) (parts [][]inbox.Event, before [][]inbox.Event) {
	parts, before = make([][]inbox.Event, l.partitions), make([][]inbox.Event, l.partitions)
	gen := produce.NewIDs(time.Now)
	for i := range n {
		p := i % l.partitions
		id, err := gen.Next()
		if err != nil {
			panic(err)
		}
		ev := inbox.Event{ID: id, Topic: "payments", Partition: int32(p), Offset: int64(len(parts[p])), Time: time.Now(),
			Value: []byte(`{"account":"acct_` + strconv.Itoa(i%1000) + `","amount":4500}`)}
		every := func(share float64) bool { return share > 0 && i%int(1/share) == int(1/share)-1 }
		switch {
		case l.duplicates == 1:
			before[p] = append(before[p], ev)
		case every(l.poison):
			ev.Value = []byte(`{"account":"acct_1","amount":0}`)
		case every(l.duplicates) && len(parts[p]) > 50:
			old := parts[p][len(parts[p])-50]
			ev.ID, ev.Value = old.ID, old.Value
		}
		parts[p] = append(parts[p], ev)
	}
	return parts, before
}

func benchServer(b *testing.B) *pgxpool.Pool {
	s := testenv.PostgresServer(b, pgserver.Options{Config: map[string]string{
		"fsync": "on", "synchronous_commit": "on", "shared_buffers": "512MB", "max_wal_size": "4GB", "log_min_messages": "fatal", "log_min_error_statement": "panic"}})
	if err := schema.Migrate(b.Context(), s.DSN("postgres"), schema.Options{}); err != nil {
		b.Fatal(err)
	}
	pool, err := payments.Pool(b.Context(), s.DSN("postgres"), 16)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	return pool
}

func truncate(b *testing.B, pool *pgxpool.Pool) {
	for _, sql := range []string{"TRUNCATE processed_events, ledger_entries, accounts, consumer_progress, producer_sequences, dead_letters", "CHECKPOINT"} {
		if _, err := pool.Exec(b.Context(), sql); err != nil {
			b.Fatal(err)
		}
	}
}

// cpu time of this process so far.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// design is a way to handle events.
type design struct {
	name   string
	batch  int // 0: the runbook's loop
	set    bool
	noFold bool
}

var designs = []design{{name: "runbook"}, {name: "batch=1", batch: 1}, {name: "batch=200,as queued", batch: 200, noFold: true}, {name: "batch=200", batch: 200},
	{name: "batch=500", batch: 500}, {name: "batch=500,set-based", batch: 500, set: true}}

// BenchmarkInbox compares the designs without a broker.
func BenchmarkInbox(b *testing.B) {
	pool := benchServer(b)
	for _, l := range []load{{1, 0, 0}, {4, 0, 0}, {4, 0.01, 0}, {4, 1, 0}, {4, 0.01, 0.01}} {
		var baseline, baselineCPU float64
		for _, d := range designs {
			b.Run(l.String()+"/"+d.name, func(b *testing.B) {
				truncate(b, pool)
				parts, before := l.events(b.N)
				applyAll(b, pool, design{batch: 500, set: true}, before)
				b.ResetTimer()
				used, start := cpu(), time.Now()
				took := applyAll(b, pool, d, parts)
				elapsed, used := time.Since(start), cpu()-used
				b.StopTimer()
				perEvent := float64(elapsed) / float64(b.N)
				perEventCPU := float64(used) / float64(b.N)
				if d.batch == 0 {
					baseline, baselineCPU = perEvent, perEventCPU
				}
				b.ReportMetric(1e9/perEvent, "events/s")
				b.ReportMetric(perEventCPU/1000, "client-µs/event")
				b.ReportMetric(baseline/perEvent, "×runbook")
				b.ReportMetric(baselineCPU/perEventCPU, "×less-client-cpu")
				if len(took) > 0 {
					slices.Sort(took)
					b.ReportMetric(float64(took[len(took)*95/100])/1e6, "tx-p95-ms")
				}
			})
		}
	}
}

// applyAll handles each partition in a goroutine of its own and returns the
// durations of the transactions.
func applyAll(b *testing.B, pool *pgxpool.Pool, d design, parts [][]inbox.Event) []time.Duration {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var took []time.Duration
	for p, events := range parts {
		wg.Go(func() {
			var err error
			var mine []time.Duration
			if d.batch == 0 {
				err = applyRunbook(b.Context(), pool, events)
			} else {
				mine, err = applyInbox(b.Context(), pool, d, int32(p), events)
			}
			if err != nil {
				b.Error(err)
			}
			mu.Lock()
			took = append(took, mine...)
			mu.Unlock()
		})
	}
	wg.Wait()
	return took
}

func applyRunbook(ctx context.Context, pool *pgxpool.Pool, events []inbox.Event) error {
	c, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer c.Release()
	r := runbook{c.Conn()}
	for _, ev := range events {
		_, err := r.handle(ctx, ev)
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == "23514" {
			err = r.deadLetter(ctx, ev, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func applyInbox(ctx context.Context, pool *pgxpool.Pool, d design, partition int32, events []inbox.Event) ([]time.Duration, error) {
	cfg := inbox.Config{Group: "g", NoFold: d.noFold, Handler: payments.Handler("g", payments.NotifyNever)}
	if d.set {
		cfg.BatchHandler = payments.SetHandler("g")
	}
	in, err := inbox.New(cfg)
	if err != nil {
		return nil, err
	}
	var took []time.Duration
	replay := false
	for chunk := range slices.Chunk(events, d.batch) {
		res, err := in.Apply(ctx, pool, inbox.Batch{Topic: "payments", Partition: partition, Events: chunk, Next: chunk[len(chunk)-1].Offset + 1, Replay: replay})
		if err != nil {
			return nil, err
		}
		took = append(took, res.Duration)
		// As the stream does.
		replay = !slices.ContainsFunc(res.Handled, func(h inbox.Handled) bool { return h.Outcome != inbox.Duplicate })
	}
	return took, nil
}

// BenchmarkEndToEnd compares the whole consumer with the runbook's loop, both
// reading from Apache Kafka and committing offsets to it.
func BenchmarkEndToEnd(b *testing.B) {
	pool := benchServer(b)
	k := testenv.KafkaServer(b, kafkaserver.Options{})
	client := []kgo.Opt{kgo.SeedBrokers(k.Brokers()...)}
	n := 0
	for _, partitions := range []int{1, 4} {
		var baseline, baselineCPU float64
		for _, d := range designs {
			b.Run(fmt.Sprintf("partitions=%d/%s", partitions, d.name), func(b *testing.B) {
				n++
				topic := fmt.Sprintf("bench-%d", n)
				truncate(b, pool)
				if _, err := produce.Run(b.Context(), produce.Config{Client: client, Topic: topic, Partitions: int32(partitions), Count: int64(b.N), Seed: 1}); err != nil {
					b.Fatal(err)
				}
				// The clock runs from the assignment on: joining a group takes
				// as long for ten events as for a million.
				var used time.Duration
				begin := sync.OnceFunc(func() { b.ResetTimer(); used = cpu() })
				if d.batch == 0 {
					begin()
					consumeRunbook(b, pool, client, topic, partitions)
				} else {
					consume(b, pool, client, topic, d, nil, begin)
				}
				elapsed, used := b.Elapsed(), cpu()-used
				b.StopTimer()
				perEvent, perEventCPU := float64(elapsed)/float64(b.N), float64(used)/float64(b.N)
				if d.batch == 0 {
					baseline, baselineCPU = perEvent, perEventCPU
				}
				b.ReportMetric(1e9/perEvent, "events/s")
				b.ReportMetric(perEventCPU/1000, "client-µs/event")
				b.ReportMetric(baseline/perEvent, "×runbook")
				b.ReportMetric(baselineCPU/perEventCPU, "×less-client-cpu")
			})
		}
	}
}

// consumeRunbook is one process a partition, as the runbook's loop scales.
func consumeRunbook(b *testing.B, pool *pgxpool.Pool, client []kgo.Opt, topic string, partitions int) {
	var wg sync.WaitGroup
	for p := range partitions {
		wg.Go(func() {
			cl, err := kgo.NewClient(append([]kgo.Opt{kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {int32(p): kgo.NewOffset().AtStart()}})}, client...)...)
			if err != nil {
				b.Error(err)
				return
			}
			defer cl.Close()
			admin := kadm.NewClient(cl)
			ends, err := admin.ListEndOffsets(b.Context(), topic)
			if err != nil {
				b.Error(err)
				return
			}
			end, _ := ends.Lookup(topic, int32(p))
			c, err := pool.Acquire(b.Context())
			if err != nil {
				b.Error(err)
				return
			}
			defer c.Release()
			r := runbook{c.Conn()}
			for next := int64(0); next < end.Offset; {
				fetches := cl.PollFetches(b.Context())
				fetches.EachRecord(func(rec *kgo.Record) {
					if _, err := r.handle(b.Context(), stream.Decode(rec)); err != nil {
						b.Error(err)
					}
					next = rec.Offset + 1
					var o kadm.Offsets
					o.AddOffset(topic, int32(p), next, -1)
					if err := admin.CommitAllOffsets(b.Context(), "runbook-"+topic, o); err != nil {
						b.Error(err)
					}
				})
			}
		})
	}
	wg.Wait()
}

func consume(b *testing.B, pool *pgxpool.Pool, client []kgo.Opt, topic string, d design, tracer *telemetry.Tracer, begin func()) {
	ic := inbox.Config{Group: "g-" + topic, NoFold: d.noFold, Handler: payments.Handler("g", payments.NotifyNever)}
	if d.set {
		ic.BatchHandler = payments.SetHandler("g")
	}
	in, err := inbox.New(ic)
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	done := make(chan error, 1)
	reg := prometheus.NewRegistry()
	go func() {
		done <- stream.Run(ctx, stream.Config{Client: client, Registerer: reg, Topics: []string{topic}, Pool: pool, Inbox: in, BatchSize: d.batch, Tracer: tracer,
			Assigned: func(parts map[string][]int32) {
				if len(parts) > 0 {
					begin()
				}
			}, Guard: stream.Guard{MarkerRetention: 8 * 24 * time.Hour}})
	}()
	cl, err := kgo.NewClient(client...)
	if err != nil {
		b.Fatal(err)
	}
	defer cl.Close()
	admin := kadm.NewClient(cl)
	for {
		select {
		case err := <-done:
			b.Fatal(err)
		default:
		}
		offsets, err := admin.FetchOffsets(ctx, "g-"+topic)
		var sum int64
		if err == nil {
			offsets.Each(func(o kadm.OffsetResponse) { sum += o.At })
		}
		if sum >= int64(b.N) {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	b.StopTimer()
	b.ReportMetric(below50ms(b, reg), "%-in-tx-below-50ms")
	stop()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}

// BenchmarkTelemetry is the cost of traces, off, at 1 % and at 100 %, in
// handled events a second through the whole consumer: medians over rounds, each
// against its own round's off, in an order that turns. The endpoint is another
// process's in life; here it is one that reads and drops.
func BenchmarkTelemetry(b *testing.B) {
	pool := benchServer(b)
	k := testenv.KafkaServer(b, kafkaserver.Options{})
	client := []kgo.Opt{kgo.SeedBrokers(k.Brokers()...)}
	sink := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	defer sink.Close()
	const events, rounds = 100_000, 7
	modes := []struct{ name, ratio string }{{"off", ""}, {"1%", "0.01"}, {"100%", "1"}, {"off-again", ""}}
	type cost struct{ rate, cpu float64 }
	n := 0
	measure := func(b *testing.B, ratio string) (c cost) {
		var tracer *telemetry.Tracer
		if ratio != "" {
			b.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.URL)
			b.Setenv("OTEL_TRACES_SAMPLER", "traceidratio")
			b.Setenv("OTEL_TRACES_SAMPLER_ARG", ratio)
			var err error
			if tracer, err = telemetry.StartTracer(b.Context(), prometheus.NewRegistry(), "g", 200); err != nil {
				b.Fatal(err)
			}
			defer func() { _ = tracer.Shutdown(context.Background()) }()
		}
		n++
		topic := fmt.Sprintf("telemetry-%d", n)
		truncate(b, pool)
		// Every record carries a trace context, as if its producer were traced.
		traced := telemetry.NewTracer(sdk.NewTracerProvider(), "")
		if _, err := produce.Run(b.Context(), produce.Config{Client: client, Topic: topic, Partitions: 4, Count: events, Seed: 1, Tracer: traced}); err != nil {
			b.Fatal(err)
		}
		b.N = events //lint:ignore SA3001 one run is one operation of each event
		var used time.Duration
		begin := sync.OnceFunc(func() { b.ResetTimer(); used = cpu() })
		consume(b, pool, client, topic, design{batch: 200}, tracer, begin)
		c = cost{events / b.Elapsed().Seconds(), float64(cpu()-used) / events / 1000}
		b.ReportMetric(c.rate, "events/s")
		b.ReportMetric(c.cpu, "client-µs/event")
		return c
	}
	slower, dearer := map[string][]float64{}, map[string][]float64{}
	for round := range rounds {
		costs := map[string]cost{}
		for i := range modes {
			m := modes[(i+round)%len(modes)]
			b.Run(fmt.Sprintf("round=%d/%s", round+1, m.name), func(b *testing.B) { costs[m.name] = measure(b, m.ratio) })
		}
		for name, c := range costs {
			slower[name] = append(slower[name], 100*(1-c.rate/costs["off"].rate))
			dearer[name] = append(dearer[name], 100*(c.cpu/costs["off"].cpu-1))
		}
	}
	for _, m := range modes[1:] {
		b.Run("median/"+m.name, func(b *testing.B) {
			b.ReportMetric(median(slower[m.name]), "%-slower")
			b.ReportMetric(median(dearer[m.name]), "%-more-client-cpu")
		})
	}
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// below50ms is the share of events whose transaction took less than 50 ms.
func below50ms(b *testing.B, reg *prometheus.Registry) float64 {
	families, err := reg.Gather()
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "event_handle_duration_seconds" {
			continue
		}
		h := f.GetMetric()[0].GetHistogram()
		for _, bucket := range h.GetBucket() {
			if bucket.GetUpperBound() == 0.05 {
				return 100 * float64(bucket.GetCumulativeCount()) / float64(h.GetSampleCount())
			}
		}
	}
	b.Fatal("no histogram")
	return 0
}

// BenchmarkPoison is what 1 % of events that cannot be applied costs, refused
// by the handler or by the database, in events a second against the clean rate:
// medians over rounds whose order turns, at 200 a batch and 4 partitions.
func BenchmarkPoison(b *testing.B) {
	pool := benchServer(b)
	const events, rounds = 40_000, 7
	modes := []struct{ name, value string }{{"clean", ""}, {"by the handler", `{"account":"","amount":1}`}, {"by the database", `{"account":"acct_1","amount":0}`}}
	rates := map[string][]float64{}
	for round := range rounds {
		for i := range modes {
			m := modes[(i+round)%len(modes)]
			truncate(b, pool)
			parts, _ := load{partitions: 4}.events(events)
			if m.value != "" {
				for _, part := range parts {
					for k := 57; k < len(part); k += 100 {
						part[k].Value = []byte(m.value)
					}
				}
			}
			start := time.Now()
			applyAll(b, pool, design{batch: 200}, parts)
			rates[m.name] = append(rates[m.name], events/time.Since(start).Seconds())
		}
	}
	for _, m := range modes {
		b.Run(m.name, func(b *testing.B) {
			b.ReportMetric(median(slices.Clone(rates[m.name])), "events/s")
			ratios := make([]float64, rounds)
			for r := range ratios {
				ratios[r] = rates[m.name][r] / rates["clean"][r]
			}
			b.ReportMetric(median(ratios), "×clean")
		})
	}
}

// BenchmarkFold is what folding equal statements gains, in events a second
// against the same statements as they were queued: medians over rounds whose
// order turns, at 4 partitions, for few accounts, of which a batch has several
// events each, and for many.
func BenchmarkFold(b *testing.B) {
	pool := benchServer(b)
	const events, rounds = 40_000, 7
	modes := []design{{name: "as queued", batch: 200, noFold: true}, {name: "folded", batch: 200}, {name: "set-based", batch: 200, set: true},
		{name: "batch=1 as queued", batch: 1, noFold: true}, {name: "batch=1", batch: 1}}
	for _, accounts := range []int{1000, 50} {
		rates := map[string][]float64{}
		for round := range rounds {
			for i := range modes {
				m := modes[(i+round)%len(modes)]
				n := events
				if m.batch == 1 {
					n = events / 8
				}
				truncate(b, pool)
				parts, _ := load{partitions: 4}.events(n)
				for p, part := range parts {
					for k := range part { // no account is in two partitions, as where the account is the record's key
						part[k].Value = fmt.Appendf(nil, `{"account":"acct_%d_%d","amount":4500}`, p, k*7919%(accounts/4))
					}
				}
				start := time.Now()
				applyAll(b, pool, m, parts)
				rates[m.name] = append(rates[m.name], float64(n)/time.Since(start).Seconds())
			}
		}
		for _, m := range modes {
			b.Run(fmt.Sprintf("accounts=%d/%s", accounts, m.name), func(b *testing.B) {
				b.ReportMetric(median(slices.Clone(rates[m.name])), "events/s")
				against := "as queued"
				if m.batch == 1 {
					against = "batch=1 as queued"
				}
				ratios := make([]float64, rounds)
				for r := range ratios {
					ratios[r] = rates[m.name][r] / rates[against][r]
				}
				b.ReportMetric(median(ratios), "×as-queued")
			})
		}
	}
}
