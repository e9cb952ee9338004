package postgres

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// BenchmarkScaleOwnRetentions measures what a steady poll reads where each
// consumer group has a retention of its own, between 3 and 8 days, and is
// pruned at its own old end: 6 groups, and 1,000. Buffers and statements do
// not depend on how busy the machine is.
//
//	go test ./collectors/postgres -run '^$' -bench ScaleOwnRetentions -benchtime 1x -timeout 1h -scale.rows 5000000 -scale.polls 6
func BenchmarkScaleOwnRetentions(b *testing.B) {
	server := scaleServer(b)
	for _, text := range strings.Split(*scaleRows, ",") {
		rows, err := strconv.Atoi(text)
		if err != nil {
			b.Fatal(err)
		}
		for _, groups := range []int{6, 1000} {
			b.Run(fmt.Sprintf("rows=%d/groups=%d", rows, groups), func(b *testing.B) {
				name := fmt.Sprintf("rows_%d", rows*10_000+groups)
				if err := server.CreateDatabase(b.Context(), name); err != nil {
					b.Fatal(err)
				}
				s := &scale{B: b, server: server, admin: dial(b, server.DSN(name)), rows: rows*10_000 + groups}
				const keep = `(3 + 5.0 * g / %d) * interval '1 day'`
				retention := fmt.Sprintf(keep, groups)
				for _, sql := range []string{
					"CREATE EXTENSION pg_stat_statements",
					"CREATE ROLE exporter" + name + " LOGIN IN ROLE pg_read_all_stats",
					`CREATE TABLE processed_events (consumer_group text NOT NULL, event_id text NOT NULL, topic text NOT NULL, partition int NOT NULL, "offset" bigint NOT NULL, processed_at timestamptz NOT NULL DEFAULT now()) WITH (autovacuum_enabled = off)`,
					fmt.Sprintf(`INSERT INTO processed_events SELECT 'group-' || g, g || '-' || i, 't', i %% 12, i, now() - %s * (i / %f) AS at
					  FROM generate_series(0, %d) g, generate_series(1, %d) i ORDER BY at`, retention, float64(rows/groups), groups-1, rows/groups),
					"ALTER TABLE processed_events ADD PRIMARY KEY (consumer_group, event_id)",
					"CREATE INDEX processed_events_processed_at ON processed_events (processed_at)",
					"GRANT SELECT ON processed_events TO PUBLIC",
					"VACUUM ANALYZE processed_events",
				} {
					if _, err := s.admin.Exec(b.Context(), sql); err != nil {
						b.Fatalf("%s: %v", sql, err)
					}
				}
				b.Logf("loaded")
				store := s.ledger()
				for {
					m, err := pollBusy(b, store)
					if err != nil {
						b.Fatal(err)
					}
					if m.Ready {
						break
					}
				}
				// 15 s of inserts and of pruning between two polls.
				perPoll := float64(rows) / (5.5 * 86400) * 15
				work := func() {
					for _, sql := range []string{
						fmt.Sprintf(`INSERT INTO processed_events SELECT 'group-' || i %% %d, 'new-' || txid_current() || '-' || i, 't', i %% 12, i FROM generate_series(1, %d) i`, groups, int(perPoll)),
						fmt.Sprintf(`DELETE FROM processed_events p USING generate_series(0, %d) g WHERE p.consumer_group = 'group-' || g AND p.processed_at < now() - %s`, groups-1, retention),
						"SELECT pg_stat_force_next_flush()", "SELECT 1",
					} {
						if _, err := s.admin.Exec(b.Context(), sql); err != nil {
							b.Fatal(err)
						}
					}
				}
				for range 3 { // the edges become fine
					work()
					time.Sleep(5 * time.Second)
					if _, err := pollBusy(b, store); err != nil {
						b.Fatal(err)
					}
				}
				s.forget()
				before, flagged, rowsSeen := s.spent("exporter"), 0, int64(0)
				for range *scalePolls {
					work()
					time.Sleep(5 * time.Second)
					m, err := pollBusy(b, store)
					if err != nil {
						b.Fatal(err)
					}
					if len(m.Inexact) > 0 {
						flagged++
						b.Log(m.Inexact)
					}
					rowsSeen = m.Rows()
				}
				used, n := s.spent("exporter"), float64(*scalePolls)
				var calls, rowsThere int64
				if err := s.admin.QueryRow(b.Context(), `SELECT coalesce(sum(calls), 0)::bigint, (SELECT count(*) FROM processed_events) FROM pg_stat_statements WHERE userid = $1::regrole`, "exporter"+name).Scan(&calls, &rowsThere); err != nil {
					b.Fatal(err)
				}
				if rowsSeen != rowsThere {
					b.Errorf("%d rows, want %d", rowsSeen, rowsThere)
				}
				b.ReportMetric(float64(flagged), "flagged-polls")
				b.ReportMetric((used.buffers-before.buffers)/n, "poll-buffers")
				b.ReportMetric(float64(calls)/n, "poll-statements")
				b.ReportMetric((used.elapsed-before.elapsed)/n, "poll-server-ms")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
