package replay_test

import (
	"bytes"
	"crypto/md5"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/collectors/replay"
	"oncewatch/deploy/pgserver"
	"oncewatch/deploy/testenv"
)

var (
	scaleMarkers = flag.Int("scale.markers", 10_000_000, "rows of the marker table for the benchmark")
	scaleGone    = flag.Int("scale.gone", 4000, "records without a marker in the benchmark")
	scaleRecords = flag.Int("scale.records", 2_000_000, "records to verify in the benchmark")
)

// The whole program, with Apache Kafka and PostgreSQL beside it on the same
// machine; ids are random, so that each look-up is at another place of the key:
//
//	go test ./collectors/replay -run '^$' -bench Verify -benchtime 1x -timeout 30m
func BenchmarkVerify(b *testing.B) {
	server := testenv.PostgresServer(b, pgserver.Options{Config: map[string]string{"shared_buffers": "1GB", "wal_level": "minimal", "max_wal_senders": "0", "max_wal_size": "8GB", "maintenance_work_mem": "1GB"}})
	w := newWorldOn(b, testenv.Kafka(b).Brokers(), server.DSN("postgres"), strings.Replace(ddl, "CREATE INDEX ON processed_events (processed_at)", "ALTER TABLE processed_events DROP CONSTRAINT processed_events_pkey", 1))
	markers, records := *scaleMarkers, *scaleRecords
	w.exec(`INSERT INTO processed_events SELECT 'g', md5(n::text)::uuid::text, 'payments', n % 4, n / 4, now() FROM generate_series(0, $1::int - 1) n`, markers)
	w.exec(`ALTER TABLE processed_events ADD PRIMARY KEY (consumer_group, event_id)`)
	w.exec(`DELETE FROM processed_events WHERE "offset" < $1`, *scaleGone/4)
	w.exec(`VACUUM ANALYZE processed_events`)
	w.exec(`CHECKPOINT`)
	w.topic("payments", 4)
	value := bytes.Repeat([]byte("v"), 200)
	for i := range records {
		id := uuid.UUID(md5.Sum(fmt.Append(nil, i)))
		w.client.Produce(w.ctx, &kgo.Record{Topic: "payments", Partition: int32(i % 4), Value: value, Headers: []kgo.RecordHeader{{Key: "event_id", Value: []byte(id.String())}}},
			func(_ *kgo.Record, err error) {
				if err != nil {
					b.Error(err)
				}
			})
	}
	if err := w.client.Flush(w.ctx); err != nil {
		b.Fatal(err)
	}
	for p := range int32(4) {
		w.commit("g", "payments", p, int64(records/4))
	}
	program := testenv.Build(b, ".")
	b.ResetTimer()
	for b.Loop() {
		cmd := exec.CommandContext(w.ctx, program, "replay", "--verify", "--group=g", "--output=json", "--kafka.brokers="+strings.Join(w.brokers, ","), "--postgres.dsn="+server.DSN("postgres"))
		var stderr strings.Builder
		cmd.Stderr = &stderr
		var stdout bytes.Buffer
		cmd.Stdout = &stdout
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		peak := peakMemory(cmd.Process.Pid)
		_ = cmd.Wait() // 1: something would be applied twice
		var a replay.Answer
		if err := json.Unmarshal(stdout.Bytes(), &a); err != nil {
			b.Fatalf("%v: %s%s", err, stdout.String(), stderr.String())
		}
		if a.Totals != (replay.Counts{Again: int64(records), Protected: int64(records - *scaleGone), Twice: int64(*scaleGone)}) {
			b.Errorf("%+v", a.Totals)
		}
		b.ReportMetric(float64(records)/a.Verified.Seconds, "records/s")
		b.ReportMetric(float64(<-peak)/1024, "peak-MiB")
		b.ReportMetric(a.Verified.LongestStatement*1000, "ms-longest-statement")
		b.ReportMetric(float64(a.Verified.Statements), "statements")
		b.ReportMetric((cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(), "cpu-s")
	}
}

// peakMemory tells a process's highest resident memory in KiB once it has
// ended; the operating system's own figure would count the test's before exec.
func peakMemory(pid int) <-chan int {
	out := make(chan int, 1)
	go func() {
		peak := 0
		for {
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			_, line, ok := strings.Cut(string(status), "VmHWM:")
			if err != nil || !ok {
				out <- peak
				return
			}
			_, _ = fmt.Sscan(line, &peak)
			time.Sleep(20 * time.Millisecond)
		}
	}()
	return out
}
