package dashboards

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"oncewatch/alerts"
	"oncewatch/deploy/testenv"
)

// world is what programs export of one group on one topic: a history, in
// promtool's notation with a sample a minute, for each series.
type world map[string]string

const day = 86400

// healthy is a group that everything is known of, and nothing is wrong with.
func healthy() world {
	w := world{}
	exporter := func(metric, labels, values string) { w.set("e:1", metric, labels, values) }
	consumer := func(metric, labels, values string) { w.set("c:1", metric, labels, values) }
	const marker = `database="d",consumer_group="g",topic="t"`
	for _, p := range []string{"0", "1"} {
		at := `consumer_group="g",topic="t",partition="` + p + `"`
		exporter("processed_events_unprotected_records", `database="d",`+at, "0x400")
		exporter("processed_events_unverified_records", `database="d",`+at, "0x400")
		exporter("consumer_lag", at, "5x400")
		exporter("consumer_lag_seconds", at, "2x400")
		exporter("consumer_records_expired", at, "0x400")
		exporter("consumer_committed_offset", at, "0+300x400")
		consumer("consumer_offset_commit_lag_seconds", at, "0.1x400")
		consumer("events_lost_total", at, "0x400")
	}
	exporter("processed_events_row_count", marker, "1000x400")
	exporter("processed_events_observed_retention_seconds", marker, num(8*day)+"x400")
	exporter("processed_events_configured_retention_seconds", `database="d",consumer_group="g"`, num(8*day)+"x400")
	exporter("processed_events_divergent_rows", `database="d",consumer_group="g",kind="different_transaction"`, "0x400")
	exporter("kafka_topic_retention_seconds", `topic="t"`, num(7*day)+"x400")
	exporter("consumer_group_topic_info", `consumer_group="g",topic="t"`, "1x400")
	exporter("consumer_group_topic_subscribed", `consumer_group="g",topic="t"`, "1x400")
	exporter("consumer_group_members", `consumer_group="g"`, "2x400")
	for _, c := range []string{"markers", "groups"} {
		exporter("oncewatch_collector_success", `collector="`+c+`"`, "1x400")
		exporter("oncewatch_collector_interval_seconds", `collector="`+c+`"`, "15x400")
		exporter("oncewatch_collector_last_success_timestamp_seconds", `collector="`+c+`"`, "0+60x400")
	}
	exporter("oncewatch_build_info", `version="1"`, "1x400")
	consumer("events_handled_total", `consumer_group="g",topic="t",outcome="processed"`, "0+600x400")
	consumer("consumer_start_time_seconds", `consumer_group="g"`, "0x400")
	return w
}

func (w world) set(instance, metric, labels, values string) {
	w[fmt.Sprintf(`%s{%s,job="j",instance=%q}`, metric, labels, instance)] = values
}

// with changes every series of a metric; "" takes it away.
func (w world) with(metric, values string) world {
	changed := world{}
	for series, v := range w {
		if name, _, _ := strings.Cut(series, "{"); name == metric {
			v = values
		}
		if v != "" {
			changed[series] = v
		}
	}
	return changed
}

// only keeps the metrics whose names begin with one of these.
func (w world) only(prefixes ...string) world {
	kept := maps.Clone(w)
	maps.DeleteFunc(kept, func(series, _ string) bool {
		return !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(series, p) })
	})
	return kept
}

func (w world) and(series, values string) world {
	more := maps.Clone(w)
	more[series] = values
	return more
}

func firing(alert, severity, labels string) string {
	return fmt.Sprintf(`ALERTS{alertname=%q,alertstate="firing",severity=%q%s}`, alert, severity, labels)
}

const (
	h = isHolding
	u = isUnknown
	w = isWarning
	v = isViolated
	o = -1 // no row for the group
)

// The answers against Prometheus' own engine, on histories: promtool evaluates,
// so that no clock has to pass. Whatever is taken away of a healthy group makes
// an answer unknown, and never leaves it good.
func TestAnswers(t *testing.T) {
	t.Parallel()
	good := healthy()
	const group, part = `,consumer_group="g"`, `consumer_group="g",topic="t",partition="0"`
	e := `,job="j",instance="e:1"`
	c := `,job="j",instance="c:1"`
	cases := []struct {
		name  string
		world world
		want  [4]int // applied once, keeps up, replayable, watched
	}{
		{"everything is known and good", good, [4]int{h, h, h, h}},
		{"nothing is scraped", world{}, [4]int{o, o, o, o}},

		{"no effect table is compared", good.with("processed_events_divergent_rows", ""), [4]int{u, h, h, h}},
		{"the markers cannot be counted", good.with("processed_events_row_count", ""), [4]int{u, h, h, u}},
		{"commits are not read", good.only("processed_events_row_count", "processed_events_div", "oncewatch", "kafka", "events_handled"), [4]int{u, u, u, u}},
		{"the log's start is not read", good.with("consumer_records_expired", ""), [4]int{u, h, h, h}},
		{"the exporter has gone, its consumer has not", good.only("events_", "consumer_start", "consumer_offset"), [4]int{u, u, u, v}},
		{"lag is not read", good.with("consumer_lag", ""), [4]int{h, u, h, h}},
		{"the topic's retention is not read", good.with("kafka_topic_retention_seconds", ""), [4]int{h, u, h, h}},
		{"neither commits' progress nor handled events", good.with("consumer_committed_offset", "").with("events_handled_total", ""), [4]int{h, u, h, h}},
		{"what waits has no age", good.with("consumer_lag_seconds", ""), [4]int{h, u, h, h}},
		{"nothing waits, whatever else is not known", good.with("consumer_lag", "0x400").with("consumer_lag_seconds", "").with("events_handled_total", "").with("consumer_committed_offset", ""), [4]int{h, h, h, h}},
		{"unprotected records are not told", good.with("processed_events_unprotected_records", ""), [4]int{h, h, u, h}},
		{"unverified records are not told", good.with("processed_events_unverified_records", ""), [4]int{h, h, u, h}},
		{"unverified records there are", good.with("processed_events_unverified_records", "7x400"), [4]int{h, h, u, h}},
		{"one of its partitions is not compared", good.and(`consumer_committed_offset{consumer_group="g",topic="t",partition="2"`+e+`}`, "0+300x400"), [4]int{h, h, u, h}},
		{"the collectors' success is not told", good.with("oncewatch_collector_last_success_timestamp_seconds", ""), [4]int{h, h, h, u}},
		{"seen five hours ago for the last time", world{`processed_events_row_count{database="d",consumer_group="g",topic="t",job="j",instance="e:1"}`: "1000x15"}, [4]int{u, u, u, v}},

		{"marker and effect diverge", good.with("processed_events_divergent_rows", "1x400"), [4]int{v, h, h, h}},
		{"a gap in the producer's sequence", good.with("events_lost_total", "0x340 1x60"), [4]int{v, h, h, h}},
		{"a gap counted by a consumer that has just come", good.with("events_lost_total", "_x340 1x60"), [4]int{v, h, h, h}},
		{"a gap of hours ago", good.with("events_lost_total", "1x400"), [4]int{h, h, h, h}},
		{"records expired unread", good.with("consumer_records_expired", "3x400"), [4]int{v, h, h, h}},
		{"these may all have been a transaction's", good.with("consumer_records_expired", "3x400").
			and(`consumer_records_expired_unverified{`+part+e+`}`, "3x400").and(`consumer_records_expired_unverified{`+strings.Replace(part, `"0"`, `"1"`, 1)+e+`}`, "3x400"), [4]int{w, h, h, h}},
		{"the group has left the topic", good.with("consumer_records_expired", "3x400").with("consumer_group_topic_subscribed", "0x400").
			with("consumer_lag", "5000x400").with("consumer_committed_offset", "7x400").with("events_handled_total", "7x400"), [4]int{h, h, h, h}},
		{"a dead letter", good.and(`events_dead_lettered_total{consumer_group="g",topic="t",reason="data"`+c+`}`, "0x340 1x60"), [4]int{w, h, h, h}},

		{"it stands still for ten minutes", good.with("consumer_committed_offset", "0+300x345 103500x60").with("events_handled_total", "0+600x345 207000x60"), [4]int{h, v, h, h}},
		{"no member is left", good.with("consumer_committed_offset", "7x400").with("events_handled_total", "7x400").with("consumer_group_members", "0x400"), [4]int{h, w, h, h}},
		{"it only counts, and commits nothing", good.with("consumer_committed_offset", "7x400"), [4]int{h, h, h, h}},
		{"a crash loop under one name", good.with("consumer_start_time_seconds", "0x340 20400+60x60"), [4]int{h, v, h, h}},
		{"a crash loop under ever new names", func() world {
			many := good
			for i := range 6 {
				many = many.and(fmt.Sprintf(`consumer_start_time_seconds{consumer_group="g",job="j",instance="c:%d"}`, 10+i), fmt.Sprintf("_x%d %dx1 _x60", 342+3*i, 60*(342+3*i)))
			}
			return many
		}(), [4]int{h, v, h, h}},
		{"a start", good.with("consumer_start_time_seconds", "0x350 21000x60"), [4]int{h, h, h, h}},
		{"what waits has used two thirds of the retention", good.with("consumer_lag_seconds", num(4.7*day)+"x400"), [4]int{h, w, h, h}},
		{"what waits is about to be deleted", good.with("consumer_lag_seconds", num(6.9*day)+"x400"), [4]int{h, v, h, h}},
		{"the offset commit is a minute behind", good.with("consumer_offset_commit_lag_seconds", "60x400"), [4]int{h, v, h, h}},
		{"much waits for more than an hour", good.with("consumer_lag", "5000x400").with("consumer_lag_seconds", "4000x400"), [4]int{h, w, h, h}},

		{"a record has lost its marker", good.with("processed_events_unprotected_records", "1x400"), [4]int{h, h, v, h}},
		{"markers are pruned at three days", good.with("processed_events_observed_retention_seconds", num(3*day)+"x400"), [4]int{h, h, v, h}},
		{"markers are pruned with hardly a margin", good.with("processed_events_observed_retention_seconds", num(7.5*day)+"x400"), [4]int{h, h, w, h}},
		{"the pruner is configured too short, on day 0", good.with("processed_events_configured_retention_seconds", num(7.5*day)+"x400"), [4]int{h, h, v, h}},
		{"a topic kept for ever under any pruner", good.with("kafka_topic_retention_seconds", "+Inf+0x400"), [4]int{h, h, v, h}},

		{"a collector hangs", good.with("oncewatch_collector_last_success_timestamp_seconds", "0+60x350 21000x50"), [4]int{h, h, h, v}},
		{"a collector never succeeded", good.with("oncewatch_collector_last_success_timestamp_seconds", "0x400"), [4]int{h, h, h, v}},
		{"a poll failed", good.with("oncewatch_collector_success", "0x400"), [4]int{h, h, h, w}},
		{"the counts may be off", good.and(`oncewatch_ledger_inexact{database="d",reason="role"`+e+`}`, "1x400"), [4]int{h, h, h, w}},
		{"of another store", good.and(`oncewatch_ledger_inexact{database="other",reason="role"`+e+`}`, "1x400"), [4]int{h, h, h, h}},

		{"an alert says more than the series", good.and(firing("ProducerEventIdReuse", "critical", group), "1x400"), [4]int{v, h, h, h}},
		{"a stall", good.and(firing("ConsumerStalled", "critical", group), "1x400"), [4]int{h, v, h, h}},
		{"an exposure that is remembered", good.and(firing("ProcessedEventsReplayExposed", "critical", group), "1x400"), [4]int{h, h, v, h}},
		{"a ticket", good.and(firing("ConsumerOffsetsMissing", "warning", group), "1x400"), [4]int{h, h, w, h}},
		{"the exporter's own", good.and(firing("ProcessedEventsExporterPollFailing", "warning", ""), "1x400"), [4]int{h, h, h, w}},
		{"nobody watches", good.and(firing("ProcessedEventsExporterDown", "critical", ""), "1x400"), [4]int{h, h, h, v}},
		{"somebody else's alert", good.and(firing("NodeDown", "critical", group), "1x400"), [4]int{h, h, h, h}},
		{"pending is not firing", good.and(strings.Replace(firing("ConsumerStalled", "critical", group), "firing", "pending", 1), "1x400"), [4]int{h, h, h, h}},
		{"an alert of a group that nothing else knows", world{firing("ProcessedEventsReplayExposed", "critical", group): "1x400"}, [4]int{u, u, v, v}},
	}
	th := alerts.Defaults()
	var asked []history
	for _, c := range cases {
		one := history{name: c.name, world: c.world}
		ask := func(name, e string, want float64) {
			samples := ""
			if c.want[0] != o {
				samples = fmt.Sprintf(`{labels: '{consumer_group="g"}', value: %s}`, num(want))
			}
			one.asked = append(one.asked, answer{name, e, samples})
		}
		sum := 0.0
		for i, q := range questions(th) {
			ask(q.name, q.verdict(), float64(c.want[i]))
			sum += weight(max(c.want[i], 0))
		}
		ask("trouble", trouble(th), sum)
		asked = append(asked, one)
	}
	evaluate(t, asked)
}

// The groups to draw are chosen by what alerts and rules have said of them; where
// no rules are evaluated a group is unknown, however well it looks.
func TestSeen(t *testing.T) {
	t.Parallel()
	ruled := healthy().and(rulesProof+`{rule="1"}`, "1x400")
	recorded := func(w world, record, values string) world {
		return w.and(record+`{database="d",consumer_group="g",topic="t"}`, values)
	}
	const unprotected, unverified = "consumer_group_topic:processed_events_unprotected_records:sum", "consumer_group_topic:processed_events_unverified_records:sum"
	var asked []history
	for _, c := range []struct {
		name  string
		world world
		want  int
	}{
		{"no rules", healthy(), u},
		{"rules, and nothing to say", ruled, h},
		{"rules that have counted nothing", recorded(recorded(ruled, unprotected, "0x400"), unverified, "0x400"), h},
		{"unverified records", recorded(ruled, unverified, "7x400"), u},
		{"unprotected records", recorded(ruled, unprotected, "1x400"), v},
		{"unprotected records, and rules no longer evaluated", recorded(healthy(), unprotected, "1x400"), v},
		{"expired records", ruled.and(`consumer_group_topic_partition:consumer_records_expired:max{consumer_group="g",topic="t",partition="0"}`, "3x400"), w},
		{"diverging rows", ruled.with("processed_events_divergent_rows", "1x400"), v},
		{"an alert for information", ruled.and(firing("ConsumerMetricsAbsent", "info", `,consumer_group="g"`), "1x400"), u},
		{"a page", ruled.and(firing("ConsumerStalled", "critical", `,consumer_group="g"`), "1x400"), v},
	} {
		one := history{name: c.name, world: c.world, asked: []answer{{"seen", seen(), fmt.Sprintf(`{labels: '{consumer_group="g"}', value: %s}`, num(weight(c.want)))}}}
		for i, q := range groupCounts().queries {
			count := 0
			if i == isViolated-c.want {
				count = 1
			}
			one.asked = append(one.asked, answer{q.legend, q.expr, fmt.Sprintf("{labels: '{}', value: %d}", count)})
		}
		asked = append(asked, one)
	}
	evaluate(t, asked)
}

// Of twelve groups ten are listed and drawn, that in trouble among them, and it is
// said that there are two more.
func TestWorstTen(t *testing.T) {
	t.Parallel()
	many := world{rulesProof + `{rule="1"}`: "1x400", firing("ConsumerStalled", "critical", `,consumer_group="g-99"`): "1x400"}
	for _, group := range []string{"g-01", "g-02", "g-03", "g-04", "g-05", "g-06", "g-07", "g-08", "g-09", "g-10", "g-11", "g-99"} {
		many.set("e:1", "consumer_group_topic_info", fmt.Sprintf(`consumer_group=%q,topic="t"`, group), "1x400")
	}
	worst, _ := queryResult(worstGroups())
	counts := groupCounts().queries
	evaluate(t, []history{{name: "twelve groups", world: many, asked: []answer{
		{"ten are drawn", "count(" + worst + ")", "{labels: '{}', value: 10}"},
		{"the worst", "(" + worst + ") > 0", fmt.Sprintf(`{labels: '{consumer_group="g-99"}', value: %s}`, num(weight(isViolated)))},
		{"of them all", counts[0].expr, "{labels: '{}', value: 1}"},
		{counts[len(counts)-1].legend, counts[len(counts)-1].expr, "{labels: '{}', value: 2}"},
	}}})
}

// A table that shrinks is not forecast to have fewer rows than none.
func TestForecastIsNotNegative(t *testing.T) {
	t.Parallel()
	i := slices.IndexFunc(boards(t), func(b board) bool { return b.UID == tableUID })
	b := boards(t)[i]
	i = slices.IndexFunc(b.panels(), func(p boardPanel) bool { return strings.HasPrefix(p.Title, "Rows, and in ") })
	shrinking := world{}
	shrinking.set("e:1", "processed_events_row_count", `database="d",consumer_group="g",topic="t"`, "1000000-500x1800")
	forecast := strings.ReplaceAll(b.panels()[i].Targets[1].Expr, "$worst", ".+")
	evaluate(t, []history{{name: "half of it is gone in a day", world: shrinking, at: "26h", asked: []answer{
		{"forecast", forecast, `{labels: '{database="d", consumer_group="g"}', value: 0}`},
	}}})
}

// history is what has been, and what is asked about it at the end.
type history struct {
	name  string
	world world
	at    string // 6h if empty
	asked []answer
}

// answer is an expression, and the samples that it has to return in promtool's
// notation.
type answer struct{ name, expr, samples string }

func evaluate(t *testing.T, histories []history) {
	t.Helper()
	var file strings.Builder
	file.WriteString("evaluation_interval: 1m\ntests:\n")
	for _, c := range histories {
		fmt.Fprintf(&file, "- name: %q\n  interval: 1m\n  input_series:\n", c.name)
		if len(c.world) == 0 {
			file.WriteString("  - {series: 'other', values: '1x400'}\n")
		}
		for _, s := range slices.Sorted(maps.Keys(c.world)) {
			fmt.Fprintf(&file, "  - {series: '%s', values: '%s'}\n", s, c.world[s])
		}
		file.WriteString("  promql_expr_test:\n")
		for _, a := range c.asked {
			fmt.Fprintf(&file, "  - eval_time: %s\n    expr: %q\n    exp_samples: [%s]\n", cmp.Or(c.at, "6h"), "# "+c.name+": "+a.name+"\n"+filled(a.expr, "4m", "6h"), a.samples)
		}
	}
	path := filepath.Join(t.TempDir(), "answers.yml")
	if err := os.WriteFile(path, []byte(file.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := testenv.Tool(t, "promtool", "test", "rules", path).CombinedOutput(); err != nil {
		for _, line := range strings.Split(string(out), "\n") {
			if len(line) > 160 {
				line = line[:160] + "…"
			}
			t.Error(line)
		}
	}
}
