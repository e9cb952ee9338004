package dashboards

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"oncewatch/alerts"
	"oncewatch/deploy/testenv"
)

// The verdicts against Prometheus' own engine, on series laid out over time:
// promtool evaluates, so no clock has to pass.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	th := alerts.Defaults()
	const (
		day   = 86400
		none  = -1 // no verdict at all
		group = `consumer_group="g"`
	)
	// series writes one series of a program, as scraped from one instance.
	series := func(instance, metric, labels, values string) [2]string {
		if labels != "" {
			labels += ","
		}
		return [2]string{fmt.Sprintf(`%s{%sjob="j",instance=%q}`, metric, labels, instance), values}
	}
	exporter := func(metric, labels, values string) [2]string { return series("e:1", metric, labels, values) }
	consumer := func(metric, labels, values string) [2]string { return series("c:1", metric, labels, values) }
	flat := func(v float64) string { return fmt.Sprintf("%s+0x400", num(v)) }
	perMinute := func(v float64) string { return fmt.Sprintf("0+%sx400", num(v)) }
	oneTable := `database="d",` + group
	withTopic := oneTable + `,topic="t"`

	handled := func(processed, duplicate float64) [][2]string {
		return [][2]string{
			consumer("events_handled_total", group+`,topic="t",outcome="processed"`, perMinute(processed)),
			consumer("events_handled_total", group+`,topic="t",outcome="duplicate"`, perMinute(duplicate)),
		}
	}
	origin := func(same, other float64) [][2]string {
		return [][2]string{
			consumer("events_duplicate_origin_total", group+`,topic="t",origin="same_offset"`, perMinute(same)),
			consumer("events_duplicate_origin_total", group+`,topic="t",origin="other_offset"`, perMinute(other)),
		}
	}
	retention := func(topic, configured, oldest string) [][2]string {
		all := [][2]string{
			exporter("consumer_group_topic_info", group+`,topic="t"`, flat(1)),
			exporter("kafka_topic_retention_seconds", `topic="t"`, topic),
			exporter("processed_events_oldest_age_seconds", withTopic, oldest),
		}
		if configured != "" {
			all = append(all, exporter("processed_events_configured_retention_seconds", oneTable, configured))
		}
		return all
	}
	latency := func(all, fast float64) [][2]string {
		return [][2]string{
			consumer("event_handle_duration_seconds_bucket", group+`,topic="t",le="0.2"`, perMinute(fast)),
			consumer("event_handle_duration_seconds_count", group+`,topic="t"`, perMinute(all)),
		}
	}
	markers := func(inserted, pruned, oldest, configured float64) [][2]string {
		return [][2]string{
			exporter("processed_events_row_count", withTopic, flat(1000)),
			exporter("processed_events_inserted_total", withTopic, perMinute(inserted)),
			exporter("processed_events_pruned_total", withTopic, perMinute(pruned)),
			exporter("processed_events_oldest_age_seconds", withTopic, flat(oldest)),
			exporter("processed_events_configured_retention_seconds", oneTable, flat(configured)),
		}
	}
	rowLimit := func(rows float64) [][2]string {
		return [][2]string{exporter("processed_events_row_limit", oneTable, flat(rows))}
	}
	join := func(parts ...[][2]string) (all [][2]string) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	one := func(s ...[2]string) [][2]string { return s }

	verdicts := map[string]string{
		"duplicates": duplicateVerdict(th), "growth": growthVerdict(th), "retention": retentionVerdict(th),
		"latency": latencyVerdict(th), "commit": commitVerdict(th), "trace": traceVerdict(),
	}
	cases := []struct {
		item, name string
		series     [][2]string
		want       float64
	}{
		{"duplicates", "a normal share", join(handled(1000, 1), origin(1, 0)), 0},
		{"duplicates", "a share above the band, all redelivered", join(handled(1000, 20), origin(20, 0)), 1},
		{"duplicates", "the share comes from ids used again", join(handled(1000, 20), origin(0, 20)), 2},
		{"duplicates", "hardly any among millions", join(handled(5000, 0.01), origin(0.01, 0)), 1},
		{"duplicates", "a producer's rare retries are no reuse", join(handled(1000, 2), origin(1, 1)), 0},
		{"duplicates", "too few events to say", join(handled(3, 1), origin(1, 0)), 0},
		{"duplicates", "an idle group", join(handled(0, 0), origin(0, 0)), 0},
		{"duplicates", "no consumer scraped", one(exporter("consumer_lag", group, flat(0))), none},

		{"growth", "a young table prunes nothing", markers(1000, 0, day, 8*day), 0},
		{"growth", "pruning keeps up", markers(1000, 1000, 8*day, 8*day), 0},
		{"growth", "a daily pruner leaves a day more", markers(1000, 0, 8.9*day, 8*day), 0},
		{"growth", "the rate rose: more is inserted than pruned", markers(1000, 100, 8*day, 8*day), 0},
		{"growth", "the pruner is gone", markers(1000, 0, 10*day, 8*day), 1},
		{"growth", "two replicas of the exporter", join(markers(1000, 1000, 8*day, 8*day), rowLimit(1500), one(
			series("e:2", "processed_events_row_count", withTopic, flat(1000)),
			series("e:2", "processed_events_inserted_total", withTopic, perMinute(1000)))), 0},
		{"growth", "within the limit", join(markers(1000, 0, day, 8*day), rowLimit(2000)), 0},
		{"growth", "beyond the limit", join(markers(1000, 0, day, 8*day), rowLimit(999)), 2},
		{"growth", "handled, and no marker written", join(markers(0, 0, day, 8*day), handled(1000, 0)), 2},
		{"growth", "an idle group", join(markers(0, 0, day, 8*day), handled(0, 0)), 0},
		{"growth", "neither retention nor limit configured", join(handled(1000, 0), one(
			exporter("processed_events_row_count", withTopic, flat(1000)),
			exporter("processed_events_inserted_total", withTopic, perMinute(1000)),
			exporter("processed_events_oldest_age_seconds", withTopic, flat(30*day)))), none},

		{"retention", "a young table under a sound pruner", retention(flat(7*day), flat(8*day), "0+60x400"), 0},
		{"retention", "a margin too small, on day 0", retention(flat(7*day), flat(7.5*day), "0+60x400"), 2},
		{"retention", "really pruned with hardly a margin", join(retention(flat(7*day), "", flat(7.5*day)),
			one(exporter("processed_events_observed_retention_seconds", withTopic, flat(7.5*day)))), 1},
		{"retention", "kept shorter than the topic, on day 0", retention(flat(7*day), flat(3*day), "0+60x400"), 2},
		{"retention", "really pruned at three days", join(retention(flat(7*day), flat(8*day), flat(3*day)),
			one(exporter("processed_events_observed_retention_seconds", withTopic, flat(3*day)))), 2},
		{"retention", "an old straggler does not hide it", join(retention(flat(7*day), flat(8*day), flat(30*day)),
			one(exporter("processed_events_observed_retention_seconds", withTopic, flat(3*day)))), 2},
		{"retention", "a table without a topic column", join(one(
			exporter("consumer_group_topic_info", group+`,topic="t"`, flat(1)),
			exporter("kafka_topic_retention_seconds", `topic="t"`, flat(7*day)),
			exporter("processed_events_oldest_age_seconds", oneTable, flat(3*day)),
			exporter("processed_events_observed_retention_seconds", oneTable, flat(3*day)))), 2},
		{"retention", "a record that a reset would apply twice", join(retention(flat(7*day), flat(8*day), flat(8*day)), one(
			exporter("processed_events_unprotected_records", group+`,database="d",topic="t",partition="0"`, flat(1)))), 2},
		{"retention", "none of them", join(retention(flat(7*day), flat(8*day), flat(8*day)), one(
			exporter("processed_events_unprotected_records", group+`,database="d",topic="t",partition="0"`, flat(0)))), 0},
		{"retention", "a topic kept for ever under any pruner", retention("+Inf+0x400", flat(8*day), "0+60x400"), 2},
		{"retention", "young or pruned: not known", retention(flat(7*day), "", flat(3*day)), none},
		{"retention", "old enough, whoever prunes", retention(flat(7*day), "", flat(8*day)), 0},
		{"retention", "no topic retention known", one(exporter("processed_events_oldest_age_seconds", withTopic, flat(3*day))), none},

		{"latency", "all fast", latency(1000, 1000), 0},
		{"latency", "two in a hundred slow", latency(1000, 980), 1},
		{"latency", "a fifth slow for hours", latency(1000, 800), 2},
		{"latency", "an idle group", latency(0, 0), 0},

		{"commit", "at once", one(consumer("consumer_offset_commit_lag_seconds", group+`,topic="t",partition="0"`, flat(0.1))), 0},
		{"commit", "seconds behind, as ever", one(consumer("consumer_offset_commit_lag_seconds", group+`,topic="t",partition="0"`, flat(5))), 0},
		{"commit", "falling behind on one partition", one(
			consumer("consumer_offset_commit_lag_seconds", group+`,topic="t",partition="0"`, flat(0.1)),
			consumer("consumer_offset_commit_lag_seconds", group+`,topic="t",partition="1"`, "0.1+0x355 5+0x40")), 1},
		{"commit", "twice of next to nothing", one(consumer("consumer_offset_commit_lag_seconds", group+`,topic="t",partition="0"`, "0.01+0x355 0.5+0x40")), 0},
		{"commit", "a minute behind", one(consumer("consumer_offset_commit_lag_seconds", group+`,topic="t",partition="0"`, flat(60))), 2},

		{"trace", "every duplicate traced", join(handled(1000, 5), origin(4, 1)), 0},
		{"trace", "duplicates without an origin", join(handled(1000, 5), origin(1, 0)), 1},
		{"trace", "no origin exported, no duplicate seen", handled(1000, 0), 0},
		{"trace", "no origin exported", handled(1000, 5), 1},
	}

	var file strings.Builder
	file.WriteString("evaluation_interval: 1m\ntests:\n")
	for _, c := range cases {
		fmt.Fprintf(&file, "- name: %q\n  interval: 1m\n  input_series:\n", c.item+": "+c.name)
		for _, s := range c.series {
			fmt.Fprintf(&file, "  - {series: '%s', values: '%s'}\n", s[0], s[1])
		}
		fmt.Fprintf(&file, "  promql_expr_test:\n  - eval_time: 6h\n    expr: %q\n    exp_samples:", filled(verdicts[c.item], "4m", "6h"))
		if c.want == none {
			file.WriteString(" []\n")
			continue
		}
		fmt.Fprintf(&file, " [{labels: '{%s}', value: %s}]\n", group, num(c.want))
	}
	path := filepath.Join(t.TempDir(), "verdicts.yml")
	if err := os.WriteFile(path, []byte(file.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := testenv.Tool(t, "promtool", "test", "rules", path).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
