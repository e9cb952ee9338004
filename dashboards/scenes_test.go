package dashboards

import (
	"bufio"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"oncewatch/alerts"
	"oncewatch/deploy/testenv"
)

// A scene is six hours of what the two programs export, and of what the alert
// rules would have written, up to some minutes after now.
type scene struct {
	name   string
	groups []actor
	// others is how many groups more there are of 20 partitions, with a quarter of
	// an hour of history: what a query over all groups has to bear.
	others int
}

// actor is one consumer group, and what has gone wrong with it.
type actor struct {
	group, topic string
	partitions   int
	short        bool // its pruner has kept three days of a seven-day topic for two hours
	crashing     bool // for 25 minutes it has been killed every 40 s before it commits
	unverified   bool // nobody knows of its oldest records
	unseen       bool // no effect table, and no consumer is scraped
	slow         bool // half of the retention is over for what waits
}

const group1000 = 1000

var scenes = []scene{
	{name: "empty"},
	{name: "healthy", groups: []actor{{group: "ledger-writer", topic: "payments", partitions: 6}, {group: "mailer", topic: "bookings", partitions: 3}}},
	{name: "short-retention", groups: []actor{
		{group: "ledger-writer", topic: "payments", partitions: 6, short: true}, {group: "mailer", topic: "bookings", partitions: 3},
		{group: "reporting", topic: "payments", partitions: 6, unverified: true},
	}},
	{name: "crash-loop", groups: []actor{
		{group: "ledger-writer", topic: "payments", partitions: 6, crashing: true}, {group: "mailer", topic: "bookings", partitions: 3},
		{group: "audit", topic: "bookings", partitions: 3, unseen: true},
	}},
	{name: "1000-groups", others: group1000, groups: func() (all []actor) {
		for i := range 12 {
			a := actor{group: fmt.Sprintf("team-%02d.ledger", i), topic: fmt.Sprintf("team-%02d.payments", i), partitions: 20}
			a.short, a.crashing, a.slow, a.unverified = i%6 == 0, i%6 == 1, i%6 == 2, i%6 > 2
			all = append(all, a)
		}
		return all
	}()},
}

// write puts a scene into OpenMetrics text with a sample a minute, fine enough
// for graphs of hours; starts of consumers fall between.
func (s scene) write(t *testing.T, path string, now time.Time) {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	out := bufio.NewWriterSize(file, 1<<20)
	const step = 60
	end := float64(now.Unix()) + 600
	from := float64(now.Unix()) - 6*3600
	written := map[string]bool{} // two groups may consume one topic
	series := func(metric, labels string, value func(at float64) float64) {
		if written[metric+labels] {
			return
		}
		written[metric+labels] = true
		from := from
		if metric == "processed_events_row_count" { // is compared with the day before
			from -= 25 * 3600
		}
		for at := math.Ceil(from/step) * step; at < end; at += step {
			if v := value(at); !math.IsNaN(v) {
				fmt.Fprintf(out, "%s{%s} %s %d\n", metric, labels, strconv.FormatFloat(v, 'g', -1, 64), int64(at))
			}
		}
	}
	if len(s.groups) == 0 {
		series("up", `job="oncewatch",instance="oncewatch:10077"`, func(float64) float64 { return 0 })
	} else {
		s.exporter(series, now)
	}
	for i, a := range s.groups {
		a.export(series, now, i)
	}
	fmt.Fprintln(out, "# EOF")
	if err := out.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}

type emit func(metric, labels string, value func(at float64) float64)

func is(v float64) func(float64) float64 { return func(float64) float64 { return v } }

const exporterTarget = `job="oncewatch",instance="oncewatch:10077"`

func (s scene) exporter(series emit, now time.Time) {
	began := float64(now.Unix()) - 6*3600
	self := func(metric, labels string, value func(float64) float64) {
		series(metric, strings.TrimPrefix(labels+","+exporterTarget, ","), value)
	}
	for _, c := range []string{"markers", "table", "groups", "topics", "retention"} {
		c = `collector="` + c + `"`
		self("oncewatch_collector_success", c, is(1))
		self("oncewatch_collector_interval_seconds", c, is(15))
		self("oncewatch_collector_last_success_timestamp_seconds", c, func(at float64) float64 { return at - 4 })
	}
	self("oncewatch_build_info", `version="0.2.0",goversion="go1.26",revision="abc"`, is(1))
	series("cluster:oncewatch_build_info:last_seen", `rule="1"`, func(at float64) float64 { return at })
	const db = `database="bank"`
	self("oncewatch_ledger_ready", db, is(1))
	self("oncewatch_ledger_corrections_total", db, is(0))
	self("oncewatch_ledger_scrub_age_seconds", db, is(5000))
	self("processed_events_table_bytes", db, func(at float64) float64 { return 9e9 + 2e3*(at-began) })
	for i, index := range []string{"processed_events_pkey", "processed_events_processed_at"} {
		self("processed_events_index_bytes", db+`,index="`+index+`"`, is([]float64{8e9, 1.5e9}[i]))
		self("processed_events_index_bloat_ratio", db+`,index="`+index+`"`, is([]float64{1.3, 1.1}[i]))
	}
	self("processed_events_dead_rows", db, func(at float64) float64 { return math.Mod(at-began, 3000) * 1000 })
	self("processed_events_last_vacuum_timestamp_seconds", db, func(at float64) float64 { return at - math.Mod(at-began, 3000) })
	self("processed_events_xmin_horizon_age_seconds", db+`,holder="session"`, func(at float64) float64 { return 30 + math.Mod(at, 90) })
	pruner := `job="pruner",instance="pruner:10078"`
	series("marker_prune_deleted_total", pruner, func(at float64) float64 { return 240 * (at - began) })
	series("marker_prune_last_success_timestamp_seconds", pruner, func(at float64) float64 { return at - 30 })
	for _, b := range []string{"0.025", "0.05", "0.1", "0.5", "+Inf"} {
		series("marker_prune_batch_duration_seconds_bucket", pruner+`,le="`+b+`"`, func(at float64) float64 {
			return (at - began) / 40 * map[string]float64{"0.025": 0.4, "0.05": 0.9, "0.1": 1, "0.5": 1, "+Inf": 1}[b]
		})
	}
}

func (a actor) export(series emit, now time.Time, seed int) {
	began := float64(now.Unix()) - 6*3600
	end := float64(now.Unix())
	const rate = 40.0 // records a second and partition
	crash, cut := end-1500, end-7200
	instance := fmt.Sprintf(`job="reference-consumer",instance="%s-0:10078"`, a.group)
	group := fmt.Sprintf(`consumer_group=%q`, a.group)
	gt := group + fmt.Sprintf(`,topic=%q`, a.topic)
	db := `database="bank",`
	exp := func(metric, labels string, value func(float64) float64) {
		series(metric, labels+","+exporterTarget, value)
	}
	con := func(metric, labels string, value func(float64) float64) {
		if !a.unseen {
			series(metric, labels+","+instance, value)
		}
	}
	// passed is the time up to whose records the group has come.
	passed := func(at float64) float64 {
		switch {
		case a.crashing:
			return min(at, crash)
		case a.slow:
			return at - 4.2*day
		}
		return at
	}
	wave := func(at float64) float64 { return math.Sin(at/1300+float64(seed)) + math.Sin(at/170)/3 }
	// started is when the process that runs now was.
	started := func(at float64) float64 {
		if a.crashing && at > crash {
			return at - math.Mod(at-crash, 40) - 2
		}
		return began - 3600
	}
	counter := func(perSecond float64) func(float64) float64 {
		return func(at float64) float64 {
			if a.crashing && at > crash {
				return perSecond * 3 * math.Mod(at-crash, 40) / 40
			}
			return math.Floor(perSecond * (at - began))
		}
	}
	exposed := func(at float64) float64 { // of each partition
		if a.short && at > cut {
			return math.Floor(rate * 4 * day * min(1, (at-cut)/1800))
		}
		return 0
	}
	unverified := func(p int, at float64) float64 {
		if a.unverified || a.short && p == 0 && at > cut {
			return 11520
		}
		return 0
	}
	for p := range a.partitions {
		gtp := gt + fmt.Sprintf(`,partition="%d"`, p)
		exp("consumer_committed_offset", gtp, func(at float64) float64 { return math.Floor(1e6 + rate*(passed(at)-began)) })
		exp("consumer_lag", gtp, func(at float64) float64 { return math.Floor(rate*(at-passed(at)) + 6 + 3*wave(at+float64(p))) })
		exp("consumer_lag_seconds", gtp, func(at float64) float64 { return at - passed(at) + 0.4 + 0.1*wave(at) })
		exp("consumer_records_expired", gtp, is(0))
		exp("consumer_offset_out_of_range", gtp, is(0))
		exp("kafka_topic_oldest_record_age_seconds", fmt.Sprintf(`topic=%q,partition="%d"`, a.topic, p), is(7*day+float64(p)*900))
		exp("processed_events_unprotected_records", db+gtp, exposed)
		exp("processed_events_unverified_records", db+gtp, func(at float64) float64 { return unverified(p, at) })
		con("consumer_offset_commit_lag_seconds", gtp, func(at float64) float64 { return max(0.05, 0.2+0.1*wave(at)) })
		con("events_lost_total", gtp, is(0))
	}
	// What the rules have recorded of its partitions.
	series("consumer_group_topic:processed_events_unprotected_records:sum", db+gt, func(at float64) float64 { return float64(a.partitions) * exposed(at) })
	series("consumer_group_topic:processed_events_unverified_records:sum", db+gt, func(at float64) (sum float64) {
		for p := range a.partitions {
			sum += unverified(p, at)
		}
		return sum
	})
	oldest := func(at float64) float64 {
		if a.short && at > cut {
			return 8*day - 5*day*min(1, (at-cut)/1800)
		}
		return 8*day + 600*math.Sin(at/600)
	}
	rows := func(at float64) float64 {
		return math.Floor(rate * float64(a.partitions) * oldest(at))
	}
	exp("processed_events_row_count", db+gt, rows)
	exp("processed_events_oldest_age_seconds", db+gt, oldest)
	exp("processed_events_observed_retention_seconds", db+gt, oldest)
	exp("processed_events_configured_retention_seconds", db+group, func(at float64) float64 {
		if a.short && at > cut {
			return 3 * day
		}
		return 8 * day
	})
	exp("processed_events_safe_rewind_seconds", db+gt, func(at float64) float64 {
		if a.unverified {
			return 5.5 * day
		}
		return min(7*day, oldest(at))
	})
	all := rate * float64(a.partitions)
	exp("processed_events_inserted_total", db+gt, func(at float64) float64 { return math.Floor(all * (passed(at) - began)) })
	exp("processed_events_pruned_total", db+gt, func(at float64) float64 { return math.Floor(all * (at - began + oldest(began) - oldest(at))) })
	exp("processed_events_row_limit", db+group, is(4e8))
	exp("kafka_topic_retention_seconds", fmt.Sprintf("topic=%q", a.topic), is(7*day))
	exp("kafka_topic_worst_case_retention_seconds", fmt.Sprintf("topic=%q", a.topic), is(7*day+4*3600))
	exp("consumer_group_topic_info", gt, is(1))
	exp("consumer_group_topic_subscribed", gt, is(1))
	exp("consumer_group_members", group, func(at float64) float64 {
		if a.crashing && at > crash {
			return math.Mod(math.Floor(at/60), 3)
		}
		return 2
	})
	if !a.unseen {
		exp("processed_events_divergent_rows", db+group+`,kind="different_transaction"`, is(0))
	}
	con("events_handled_total", gt+`,outcome="processed"`, counter(all))
	con("events_handled_total", gt+`,outcome="duplicate"`, counter(all*0.001))
	con("events_duplicate_origin_total", gt+`,origin="same_offset"`, counter(all*0.001))
	con("events_duplicate_origin_total", gt+`,origin="other_offset"`, counter(0))
	for i, le := range []string{"0.005", "0.01", "0.025", "0.05", "0.1", "0.2", "0.5", "+Inf"} {
		con("event_handle_duration_seconds_bucket", gt+`,le="`+le+`"`, counter(all*[]float64{0.1, 0.5, 0.85, 0.96, 0.99, 0.999, 1, 1}[i]))
	}
	con("event_retries_total", gt, counter(all*0.0004))
	con("consumer_rebalances_total", group, func(at float64) float64 {
		if a.crashing && at > crash {
			return 3 + math.Floor((at-crash)/40)
		}
		return 3
	})
	con("consumer_start_time_seconds", group, started)
	con("outbox_oldest_pending_age_seconds", group, func(at float64) float64 { return 2 + wave(at) })
	con("outbox_deliveries_total", group+`,outcome="delivered"`, counter(all))
	alert := func(name, severity string, since float64, on bool) {
		if !on {
			return
		}
		after := func(v func(float64) float64) func(float64) float64 {
			return func(at float64) float64 {
				if at < since {
					return math.NaN()
				}
				return v(at)
			}
		}
		labels := fmt.Sprintf(`alertname=%q,severity=%q,%s`, name, severity, gt)
		series("ALERTS", labels+`,alertstate="firing"`, after(is(1)))
		series("ALERTS_FOR_STATE", labels, after(is(since-600)))
	}
	alert("ProcessedEventsReplayExposed", "critical", cut+900, a.short)
	alert("ProcessedEventsRetentionBelowBroker", "critical", cut+1500, a.short)
	alert("ProcessedEventsReplayUnverified", "info", began+3600, a.unverified)
	alert("ConsumerStalled", "critical", crash+720, a.crashing)
	alert("ConsumerRecordsExpiringSoon", "warning", began+600, a.slow)
	alert("ConsumerMetricsAbsent", "info", began+1800, a.unseen)
}

// prometheus stores a scene and serves it.
func (s scene) prometheus(t *testing.T, now time.Time) server {
	t.Helper()
	text := filepath.Join(t.TempDir(), "scene.txt")
	s.write(t, text, now)
	blocks := filepath.Join(t.TempDir(), "blocks")
	if out, err := testenv.Tool(t, "promtool", "tsdb", "create-blocks-from", "openmetrics", text, blocks).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if s.others > 0 {
		generate := exec.CommandContext(t.Context(), "go", "run", "-modfile=tools.mod", "alerts/costdata/main.go",
			blocks, strconv.Itoa(s.others), strconv.FormatInt(now.Unix()+600, 10))
		generate.Dir = testenv.Root()
		if out, err := generate.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	p := testenv.Prometheus(t, map[string]string{"prometheus.yml": "global: {scrape_interval: 15s}\n"},
		"--storage.tsdb.path="+blocks, "--storage.tsdb.retention.time=10y")
	return server{p.URL}
}

// at asks as of a time.
func (s server) at(t *testing.T, expr string, when time.Time) []sample {
	t.Helper()
	var data struct{ Result []sample }
	s.get(t, "/api/v1/query", map[string][]string{"query": {expr}, "time": {fmt.Sprint(when.Unix())}}, &data)
	return data.Result
}

// What the overview answers in each scene: nobody is called fine of whom
// something is not known, and the trouble is where it was made.
func TestScenes(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Minute)
	th := alerts.Defaults()
	want := map[string]map[string][4]int{
		"empty":   {},
		"healthy": {"ledger-writer": {h, h, h, h}, "mailer": {h, h, h, h}},
		"short-retention": {
			"ledger-writer": {h, h, v, h}, "mailer": {h, h, h, h}, "reporting": {h, h, u, h},
		},
		"crash-loop": {
			"ledger-writer": {h, v, h, h}, "mailer": {h, h, h, h}, "audit": {u, h, h, h},
		},
	}
	for _, s := range scenes {
		if s.others > 0 {
			continue // by command: TestCost
		}
		t.Run(s.name, func(t *testing.T) {
			p := s.prometheus(t, now)
			for i, q := range questions(th) {
				got := map[string]int{}
				for _, one := range p.at(t, filled(q.verdict(), "4m", "6h"), now) {
					f, err := strconv.ParseFloat(one.Value[1].(string), 64)
					if err != nil {
						t.Fatal(err)
					}
					got[one.Metric["consumer_group"]] = int(f)
				}
				wanted := map[string]int{}
				for group, answers := range want[s.name] {
					wanted[group] = answers[i]
				}
				if !maps.Equal(got, wanted) {
					t.Errorf("%s: %v, want %v", q.name, got, wanted)
				}
			}
			// As many of each are counted, the worst first, and none is left out.
			var counts []int
			for _, q := range groupCounts().queries {
				for _, one := range p.at(t, filled(q.expr, "4m", "6h"), now) {
					n, err := strconv.Atoi(one.Value[1].(string))
					if err != nil {
						t.Fatal(err)
					}
					counts = append(counts, n)
				}
			}
			wanted := []int{0, 0, 0, 0, 0}
			for _, answers := range want[s.name] {
				wanted[isViolated-slices.Max(answers[:])]++
			}
			if s.name == "empty" {
				wanted = nil
			}
			if !slices.Equal(counts, wanted) {
				t.Errorf("violated, warning, unknown, nothing seen, not listed: %v, want %v", counts, wanted)
			}
			// Where nothing is scraped no number is shown at all, not even a 0.
			everyQuery(t, func(where, query, _ string) {
				answer := p.at(t, filled(query, "4m", "6h"), now)
				if s.name == "empty" && len(answer) > 0 {
					t.Errorf("%s says something where nothing is scraped: %v", where, answer)
				}
			})
		})
	}
}
