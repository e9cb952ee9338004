//go:build ignore

// Writes a TSDB for the test of what the rules cost, and its number of series
// to standard output:
//
//	go run -modfile=tools.mod alerts/costdata/main.go DIR GROUPS UNTIL
//
// UNTIL is a Unix time. It is not part of the module's packages: Prometheus'
// storage brings the SDKs of every cloud, which are of tools.mod.
package main

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("want DIR GROUPS UNTIL")
	}
	groups, err := strconv.Atoi(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	until, err := strconv.ParseInt(os.Args[3], 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	count, err := history(os.Args[1], groups, time.Now(), time.Unix(until, 0))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(count)
}

// history writes blocks of what groups export up to a time to come.
func history(dir string, groups int, now, until time.Time) (count int, err error) {
	w, err := tsdb.NewBlockWriter(slog.New(slog.DiscardHandler), dir, (72 * time.Hour).Milliseconds())
	if err != nil {
		return 0, err
	}
	defer w.Close()
	ctx := context.Background()
	app, pending := w.Appender(ctx), 0
	write := func(depth, step time.Duration, value func(at float64) float64, name string, pairs ...string) {
		count++
		b := labels.NewBuilder(labels.FromStrings(pairs...))
		b.Set(labels.MetricName, name)
		l := b.Labels()
		var ref storage.SeriesRef
		for at := now.Add(-depth).Truncate(step); at.Before(until); at = at.Add(step) {
			if ref, err = app.Append(ref, l, at.UnixMilli(), value(float64(at.Unix()))); err != nil {
				log.Fatal(err)
			}
			if pending++; pending >= 100_000 {
				if err := app.Commit(); err != nil {
					log.Fatal(err)
				}
				app, pending, ref = w.Appender(ctx), 0, 0
			}
		}
	}
	is := func(v float64) func(float64) float64 { return func(float64) float64 { return v } }
	grows := func(perSecond float64) func(float64) float64 {
		begin := float64(now.Add(-48 * time.Hour).Unix())
		return func(at float64) float64 { return float64(int64((at - begin) * perSecond)) }
	}
	const s15, short, six, day = 15 * time.Second, 16 * time.Minute, 6*time.Hour + 10*time.Minute, 24*time.Hour + 10*time.Minute
	for i := range groups {
		group, topic := fmt.Sprint("group-", i), fmt.Sprint("topic-", i)
		gt := []string{"consumer_group", group, "topic", topic}
		dgt := append([]string{"database", "db"}, gt...)
		exporter, consumer := []string{"job", "oncewatch", "instance", "x"}, []string{"job", "consumer", "instance", "c" + strconv.Itoa(i)}
		with := func(target []string, pairs ...string) []string {
			return append(append([]string{}, target...), pairs...)
		}
		for p := range 20 {
			gtp := append(append([]string{}, gt...), "partition", strconv.Itoa(p))
			dgtp := append([]string{"database", "db"}, gtp...)
			write(short, s15, is(float64(10+i%7)), "consumer_lag", with(exporter, gtp...)...)
			write(short, s15, is(1.5), "consumer_lag_seconds", with(exporter, gtp...)...)
			write(short, s15, is(0), "consumer_records_expired", with(exporter, gtp...)...)
			write(short, s15, grows(5), "consumer_committed_offset", with(exporter, gtp...)...)
			write(short, s15, grows(5), "kafka_topic_partition_log_end_offset", with(exporter, "topic", topic, "partition", strconv.Itoa(p))...)
			write(short, s15, is(0), "processed_events_unprotected_records", with(exporter, dgtp...)...)
			write(short, s15, is(0), "processed_events_unverified_records", with(exporter, dgtp...)...)
			write(short, s15, is(0.1), "consumer_offset_commit_lag_seconds", with(consumer, gtp...)...)
			write(short, s15, is(0), "events_lost_total", with(consumer, gtp...)...)
		}
		write(short, s15, is(691200), "processed_events_oldest_age_seconds", with(exporter, dgt...)...)
		write(short, s15, is(1), "processed_events_newest_age_seconds", with(exporter, dgt...)...)
		write(short, s15, is(4e7), "processed_events_row_count", with(exporter, dgt...)...)
		write(six, s15, grows(100), "processed_events_inserted_total", with(exporter, dgt...)...)
		write(short, s15, is(691200), "processed_events_observed_retention_seconds", with(exporter, dgt...)...)
		write(short, s15, is(691200), "processed_events_configured_retention_seconds", with(exporter, dgt[:4]...)...)
		write(short, s15, is(0), "processed_events_divergent_rows", with(exporter, append(dgt[:4:4], "kind", "different_transaction")...)...)
		write(short, s15, is(604800), "kafka_topic_retention_seconds", with(exporter, "topic", topic)...)
		write(short, s15, is(1), "consumer_group_topic_info", with(exporter, gt...)...)
		write(short, s15, is(1), "consumer_group_topic_subscribed", with(exporter, gt...)...)
		write(short, s15, is(3), "consumer_group_members", with(exporter, gt[:2]...)...)
		write(time.Hour, s15, is(1), "up", consumer...)
		write(time.Hour, s15, is(float64(now.Add(-48*time.Hour).Unix())), "consumer_start_time_seconds", with(consumer, gt[:2]...)...)
		write(time.Hour, s15, is(3), "consumer_rebalances_total", with(consumer, gt[:2]...)...)
		for _, outcome := range []string{"processed", "duplicate"} {
			write(six, s15, grows(50), "events_handled_total", with(consumer, append(gt[:4:4], "outcome", outcome)...)...)
		}
		for _, origin := range []string{"same_offset", "other_offset"} {
			write(time.Hour, s15, is(3), "events_duplicate_origin_total", with(consumer, append(gt[:4:4], "origin", origin)...)...)
		}
		for b, le := range []string{"0.005", "0.01", "0.025", "0.05", "0.1", "0.2", "0.5", "1", "2.5", "+Inf"} {
			depth := short
			if le == "0.2" {
				depth = six
			}
			write(depth, s15, grows(10*float64(b+1)), "event_handle_duration_seconds_bucket", with(consumer, append(gt[:4:4], "le", le)...)...)
		}
		write(six, s15, grows(100), "event_handle_duration_seconds_count", with(consumer, gt...)...)
		write(time.Hour, s15, is(2), "event_retries_total", with(consumer, gt...)...)
		for _, reason := range []string{"data", "decode", "too_old"} {
			write(short, s15, is(0), "events_dead_lettered_total", with(consumer, append(gt[:4:4], "reason", reason)...)...)
		}
		// What the rules have recorded, and over a day.
		for _, of := range []string{"unprotected", "unverified"} {
			write(short, time.Minute, is(0), "consumer_group_topic:processed_events_"+of+"_records:sum", dgt...)
		}
		for _, name := range []string{"consumer_group_topic:processed_events_oldest_timestamp_seconds:max", "consumer_group_topic:processed_events_oldest_timestamp_seconds:moved"} {
			write(day, time.Minute, grows(1), name, dgt...)
		}
		for _, name := range []string{"consumer_group:processed_events_row_count:sum", "consumer_group:processed_events_row_count:avg_prune_cycle", "consumer_group:processed_events_inserted:increase_quarter_cycle"} {
			write(day, time.Minute, is(4e7), name, dgt[:4]...)
		}
		for _, name := range []string{"consumer_group_topic:consumer_lag:sum", "consumer_group_topic:consumer_lag:avg_third", "consumer_group_topic:consumer_offset_commit_lag_seconds:max", "consumer_group_topic:consumer_offset_commit_lag_seconds:median",
			"consumer_group_topic:events_handled:increase_duplicate_window", "consumer_group_topic:events_duplicate:increase_duplicate_window"} {
			write(day, time.Minute, is(100), name, gt...)
		}
		write(day, time.Minute, is(3), "consumer_group:consumer_group_members:max", gt[:2]...)
	}
	if err := app.Commit(); err != nil {
		return 0, err
	}
	_, err = w.Flush(ctx)
	return count, err
}
