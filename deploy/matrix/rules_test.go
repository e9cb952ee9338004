package matrix

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"

	"oncewatch/alerts"
)

// shipped are the thresholds with which the matrix differs from the defaults
// before time is made faster: each with its reason.
var shipped = map[string]string{
	// A pruner that runs every 20 minutes, not daily: two of its cycles must
	// pass before the table's growth is judged.
	"prune_cycle": "20m",
	// A lag is held against the start of a consumer from 20 to 40 minutes
	// after it, not to 2 hours: as long again would have to pass before.
	"lag_restart_until": "40m",
	// Enough for a stack that handles 50 events a second for a minute.
	"duplicate_low_min_events": "2000",
}

// seconds are the thresholds in seconds of a metric's own value, which no
// clock makes faster.
func seconds() map[string]string {
	return map[string]string{
		"outbox_pending_age":  fmt.Sprint(minutes(10).Seconds()),
		"commit_lag_critical": "5",   // not 30: a real wait for an offset commit
		"latency_p99":         "0.5", // not 0.2: several stacks share this machine
	}
}

// minutes is so many minutes of the rules, in real time.
func minutes(n float64) time.Duration {
	return time.Duration(n * float64(time.Minute) / float64(*speed))
}

// rules renders the shipped rules on the faster clock.
func rules(t *testing.T) []byte {
	t.Helper()
	slow := render(t, shipped)
	set, own := map[string]string{}, seconds()
	for _, v := range alerts.Values() {
		value := v.Default
		if s, ok := shipped[v.Key]; ok {
			value = s
		}
		if s, ok := own[v.Key]; ok {
			value = s
		}
		if v.Unit == "duration" {
			d, err := model.ParseDuration(value)
			if err != nil {
				t.Fatal(err)
			}
			value = (d / model.Duration(*speed)).String()
		}
		set[v.Key] = value
	}
	return faster(t, slow, render(t, set))
}

func render(t *testing.T, set map[string]string) *rulefmt.RuleGroups {
	t.Helper()
	var doc bytes.Buffer
	if err := alerts.Render(&doc, alerts.Options{Set: set}); err != nil {
		t.Fatal(err)
	}
	return parse(t, doc.Bytes())
}

func parse(t *testing.T, doc []byte) *rulefmt.RuleGroups {
	t.Helper()
	groups, errs := rulefmt.Parse(doc, false, model.LegacyValidation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	for _, err := range errs {
		t.Fatal(err)
	}
	return groups
}

// faster divides every duration of the rules by speed. Durations that a
// threshold sets are already faster in set, which was rendered with them so:
// there they can also stand in expressions as plain seconds. What is the same
// in both is written in the rule itself.
func faster(t *testing.T, slow, set *rulefmt.RuleGroups) []byte {
	t.Helper()
	for g := range slow.Groups {
		set.Groups[g].Interval = divide(slow.Groups[g].Interval, set.Groups[g].Interval)
		for r := range slow.Groups[g].Rules {
			from, to := slow.Groups[g].Rules[r], &set.Groups[g].Rules[r]
			to.For = divide(from.For, to.For)
			to.KeepFiringFor = divide(from.KeepFiringFor, to.KeepFiringFor)
			was, is := expression(t, from.Expr), expression(t, to.Expr)
			a, b := durations(was), durations(is)
			if len(a) != len(b) {
				t.Fatalf("%s%s: %d durations, %d when set", from.Record, from.Alert, len(a), len(b))
			}
			for i := range a {
				if *a[i] == *b[i] {
					*b[i] /= time.Duration(*speed)
				}
			}
			to.Expr = is.String()
		}
	}
	doc, err := yaml.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func divide(slow, set model.Duration) model.Duration {
	if slow == set {
		return slow / model.Duration(*speed)
	}
	return set
}

func expression(t *testing.T, text string) parser.Expr {
	t.Helper()
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return expr
}

// durations are the ranges, offsets and steps of an expression, in order.
func durations(expr parser.Expr) []*time.Duration {
	var all []*time.Duration
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.VectorSelector:
			all = append(all, &n.OriginalOffset)
		case *parser.MatrixSelector:
			all = append(all, &n.Range)
		case *parser.SubqueryExpr:
			all = append(all, &n.Range, &n.Step, &n.OriginalOffset)
		}
		return nil
	})
	return all
}

// comparison renders the rules of a stack to compare with, on the same clock.
func comparison(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("compare", name+".rules.yml"))
	if err != nil {
		t.Fatal(err)
	}
	return faster(t, parse(t, text), parse(t, text))
}

// The clock is faster by the same factor everywhere, and nothing else changes.
func TestRulesAreFaster(t *testing.T) {
	fast := parse(t, rules(t))
	for _, g := range fast.Groups {
		if time.Duration(g.Interval) != minutes(1) {
			t.Errorf("group %s: evaluated every %s, want %s", g.Name, g.Interval, minutes(1))
		}
	}
	find := func(name string) rulefmt.Rule {
		for _, g := range fast.Groups {
			for _, r := range g.Rules {
				if r.Alert == name || r.Record == name {
					return r
				}
			}
		}
		t.Fatalf("no rule %s", name)
		return rulefmt.Rule{}
	}
	for name, want := range map[string]time.Duration{
		"ConsumerDuplicateRatioHigh":           minutes(15), // set by a threshold
		"ConsumerHandleLatencyP99High":         minutes(10), // in the rule itself
		"ProcessedEventsGrowthOutpacesPruning": minutes(60),
	} {
		if got := time.Duration(find(name).For); got != want {
			t.Errorf("%s: for %s, want %s", name, got, want)
		}
	}
	moved := find("consumer_group_topic:processed_events_oldest_timestamp_seconds:moved").Expr
	for _, want := range []string{
		fmt.Sprintf("[%s]", model.Duration(minutes(24*60))),
		fmt.Sprintf("> %v", minutes(15).Seconds()),
	} {
		if !strings.Contains(moved, want) {
			t.Errorf("moved: %s, want %s in it", moved, want)
		}
	}
}
