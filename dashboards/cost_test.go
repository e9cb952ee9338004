package dashboards

import (
	"flag"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var cost = flag.Bool("cost", false, "measure how long each panel takes at 1,000 consumer groups of 20 partitions")

// resolved asks what Grafana would put into the hidden variable of a dashboard.
func (s server) resolved(t *testing.T, b board, when time.Time) (worst string, took time.Duration) {
	t.Helper()
	for _, v := range b.Templating.List {
		query, ok := queryResult(v.Query)
		if !ok {
			continue
		}
		var names []string
		began := time.Now()
		for _, one := range s.at(t, filled(query, "1m", "6h"), when) {
			names = append(names, quoted(one.Metric["consumer_group"]))
		}
		slices.Sort(names)
		return strings.Join(slices.Compact(names), "|"), time.Since(began)
	}
	return ".+", 0
}

// quoted is a name as Grafana writes it into a matcher.
func quoted(name string) string { return strings.ReplaceAll(regexp.QuoteMeta(name), `\`, `\\`) }

// At 1,000 groups of 20 partitions every panel answers within a second on a real
// Prometheus, and draws no more lines than a person can tell apart. The ten groups
// in most trouble have six hours of history, the others a quarter of an hour, so
// that a query over all groups is to be one that looks at a moment.
//
//	go test ./dashboards -run TestCost -cost -v
func TestCost(t *testing.T) {
	if !*cost {
		t.Skip("a command of its own: go test ./dashboards -run TestCost -cost -v")
	}
	now := time.Now().Truncate(time.Minute)
	i := slices.IndexFunc(scenes, func(s scene) bool { return s.others > 0 })
	p := scenes[i].prometheus(t, now)
	all := p.at(t, "count(consumer_lag)", now)
	t.Logf("%v partitions", all[0].Value[1])
	const limit = time.Second
	for _, b := range boards(t) {
		worst, took := p.resolved(t, b, now)
		t.Logf("%.3f s  %s: the groups to draw: %s", took.Seconds(), b.UID, worst)
		if took > limit {
			t.Errorf("%s: choosing the groups takes %v", b.UID, took)
		}
		back := 6 * time.Hour
		if b.UID == tableUID {
			back = 7 * 24 * time.Hour
		}
		ask := func(e string, instant bool, width int) []sample {
			if b.UID == groupUID {
				e = strings.ReplaceAll(e, "$consumer_group", quoted(scenes[i].groups[1].group))
			}
			e = filled(strings.ReplaceAll(e, "$worst", worst), "1m", "6h")
			if instant {
				return p.at(t, e, now)
			}
			// Two pixels a point.
			step := max(15, int(back.Seconds())/(25*width))
			var data struct{ Result []sample }
			p.get(t, "/api/v1/query_range", url.Values{
				"query": {e}, "step": {fmt.Sprint(step)},
				"start": {fmt.Sprint(now.Add(-back).Unix())}, "end": {fmt.Sprint(now.Unix())},
			}, &data)
			return data.Result
		}
		for _, panel := range b.panels() {
			var slowest, sum time.Duration
			lines := 0
			for _, q := range panel.Targets {
				began := time.Now()
				got := ask(q.Expr, q.Instant, int(panel.GridPos.W))
				took := time.Since(began)
				slowest, sum = max(slowest, took), sum+took
				if q.Instant {
					lines = max(lines, len(got)) // rows of a table
				} else {
					lines += len(got)
				}
			}
			t.Logf("%.3f s, its slowest query %.3f s, %3d lines  %s / %s", sum.Seconds(), slowest.Seconds(), lines, b.UID, panel.Title)
			if slowest > limit {
				t.Errorf("%s / %s takes %v", b.UID, panel.Title, slowest)
			}
			if lines > 33 { // ten groups, each with what it is held against
				t.Errorf("%s / %s draws %d lines", b.UID, panel.Title, lines)
			}
		}
		for _, a := range b.Annotations.List {
			began := time.Now()
			ask(a.Target.Expr, false, 12)
			if took := time.Since(began); took > limit {
				t.Errorf("%s / annotation %s takes %v", b.UID, a.Name, took)
			}
		}
	}
}
