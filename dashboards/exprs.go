package dashboards

import (
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/common/model"

	"oncewatch/alerts"
)

// Every aggregation keeps the optional cluster label, and folds two replicas of
// the exporter, which report the same facts, with max or min, never with sum.

// perGroup is the key of a verdict: one consumer group.
const perGroup = "cluster, consumer_group"

// expr formats a PromQL expression on one line.
func expr(format string, args ...any) string {
	return strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ")
}

// worst is the highest of several verdicts for each consumer group. The label
// keeps expressions with equal labels apart, which `or` would otherwise drop.
func worst(verdicts ...string) string {
	parts := make([]string, len(verdicts))
	for i, v := range verdicts {
		parts[i] = fmt.Sprintf(`label_replace(%s, "verdict", "%d", "", "")`, v, i+1)
	}
	return expr(`max by (%s) (%s)`, perGroup, strings.Join(parts, " or "))
}

// replicated sums an exporter's counter over what is not in the key, within one
// replica, and takes the replica that saw most.
func replicated(key, rate string) string {
	return expr(`max by (%s) (sum by (%s, job, instance) (%s))`, key, key, rate)
}

// topicRetention is what the broker keeps, by topic.
func topicRetention() string {
	return expr(`max by (cluster, topic) (%s)`, sel("kafka_topic_retention_seconds"))
}

// groupRetention is the longest retention of the topics a group consumes.
func groupRetention() string {
	return expr(`max by (%s) (max by (%s, topic) (%s) * on (cluster, topic) group_left () %s)`,
		perGroup, perGroup, sel("consumer_group_topic_info"), topicRetention())
}

// againstRetention divides the lowest age of a marker metric by the retention
// of its topic, or of the group's longest-kept topic where the marker table has
// no topic column.
func againstRetention(metric string) string {
	return expr(`
		min by (cluster, database, consumer_group, topic) (%s) / on (cluster, topic) group_left () %s
		or
		min by (cluster, database, consumer_group) (%s) / on (%s) group_left () %s`,
		sel(metric, `topic!=""`), topicRetention(),
		sel(metric, `topic=""`), perGroup, groupRetention())
}

// configuredAgainstRetention is the same for what the pruner is told to keep.
func configuredAgainstRetention() string {
	return expr(`min by (cluster, database, consumer_group) (%s) / on (%s) group_left () %s`,
		sel("processed_events_configured_retention_seconds"), perGroup, groupRetention())
}

// slowShare is the share of events that took longer than the objective: exact,
// because the histogram has a bucket bound at it. A Prometheus that stores
// native histograms alone has no buckets, and interpolates.
func slowShare(t alerts.Thresholds, window model.Duration) string {
	return expr(`
		1 - sum by (%[1]s) (increase(%[2]s[%[5]s])) / sum by (%[1]s) (increase(%[3]s[%[5]s]))
		or
		1 - histogram_fraction(0, %[6]s, sum by (%[1]s) (increase(%[4]s[%[5]s])))`,
		perGroup,
		sel("event_handle_duration_seconds_bucket", fmt.Sprintf(`le=%q`, num(t.LatencyP99))),
		sel("event_handle_duration_seconds_count"),
		sel("event_handle_duration_seconds"),
		window, num(t.LatencyP99))
}

// quantile is a quantile of the handle duration by consumer group.
func quantile(q float64) string {
	return expr(`
		histogram_quantile(%[1]s, sum by (%[2]s, le) (rate(%[3]s[$__rate_interval])))
		or
		histogram_quantile(%[1]s, sum by (%[2]s) (rate(%[4]s[$__rate_interval])))`,
		num(q), perGroup, sel("event_handle_duration_seconds_bucket"), sel("event_handle_duration_seconds"))
}

// The six items of the checklist as verdicts: 0 holds, 1 watch, 2 violated, no
// value where nothing says so.

// duplicateVerdict: the share of duplicates lies in the band that at-least-once
// delivery explains. Above it is worse where most carry an id that was first
// seen at another offset.
func duplicateVerdict(t alerts.Thresholds) string {
	counted := func(window model.Duration, metric string, matchers ...string) string {
		return expr(`sum by (%s) (increase(%s[%s]))`, perGroup, sel(metric, matchers...), window)
	}
	handled := counted(t.DuplicateWindow, "events_handled_total")
	duplicates := counted(t.DuplicateWindow, "events_handled_total", `outcome="duplicate"`)
	elsewhere := counted(t.DuplicateWindow, "events_duplicate_origin_total", `origin="other_offset"`)
	handledLong := counted(t.DuplicateLowWindow, "events_handled_total")
	duplicatesLong := counted(t.DuplicateLowWindow, "events_handled_total", `outcome="duplicate"`)
	tooHigh := expr(`(%s / %s > bool %s) * (%s >= bool %s)`, duplicates, handled, num(t.DuplicateRatioMax), handled, num(t.DuplicateMinEvents))
	return worst(
		tooHigh,
		expr(`2 * %s * (%s > bool 0.5 * %s)`, tooHigh, elsewhere, duplicates),
		expr(`(%s / %s < bool %s) * (%s >= bool %s)`, duplicatesLong, handledLong, num(t.DuplicateRatioMin), handledLong, num(t.DuplicateLowMinEvents)),
	)
}

// growthVerdict: nothing is left that should have been pruned, the table is
// within its limit, and what is handled is marked. As in the checklist a daily
// pruner may leave a cycle more than it keeps, and a tenth.
//
// That more is inserted than pruned says nothing: the two meet one retention
// after the rate has changed.
func growthVerdict(t alerts.Thresholds) string {
	oldest := expr(`max by (%s) (%s)`, perGroup, sel("processed_events_oldest_age_seconds"))
	kept := expr(`max by (%s) (%s)`, perGroup, sel("processed_events_configured_retention_seconds"))
	limit := expr(`max by (%s) (%s)`, perGroup, sel("processed_events_row_limit"))
	rows := expr(`sum by (%[1]s) (max by (%[1]s, database, topic) (%[2]s))`, perGroup, sel("processed_events_row_count"))
	inserted := replicated(perGroup, expr(`increase(%s[%s])`, sel("processed_events_inserted_total"), t.EventWindow))
	processed := expr(`sum by (%s) (increase(%s[%s]))`, perGroup, sel("events_handled_total", `outcome="processed"`), t.EventWindow)
	return worst(
		expr(`%s > bool on (%s) (1.1 * %s + %s)`, oldest, perGroup, kept, num(time.Duration(t.PruneCycle).Seconds())),
		expr(`2 * (%s >= bool on (%s) %s)`, rows, perGroup, limit),
		expr(`2 * (%s > bool 0) * on (%s) (%s == bool 0) > 0`, processed, perGroup, inserted),
	)
}

// retentionVerdict: markers outlive the broker's records. What the pruner
// really keeps and what it is told to keep decide. The age of the oldest marker
// alone only says something once it is high enough: a young table is not wrong.
func retentionVerdict(t alerts.Thresholds) string {
	warning, critical := num(t.RetentionRatioWarning), num(t.RetentionRatioCritical)
	observed := againstRetention("processed_events_observed_retention_seconds")
	return worst(
		expr(`((%s) < bool %s) + ((%s) < bool %s)`, observed, warning, observed, critical),
		expr(`2 * (%s < bool %s)`, configuredAgainstRetention(), warning),
		expr(`2 * (sum by (%[1]s) (max by (%[1]s, topic, partition) (%[2]s)) > bool 0) > 0`, perGroup, sel("processed_events_unprotected_records")),
		expr(`0 * ((%s) >= %s)`, againstRetention("processed_events_oldest_age_seconds"), warning),
	)
}

// latencyVerdict: the objective for the whole transaction holds now, and over
// an hour is not missed so often that the error budget burns fast.
func latencyVerdict(t alerts.Thresholds) string {
	return worst(
		expr(`(%s) > bool %s`, slowShare(t, t.LatencyWindow), num(1-t.LatencyObjective)),
		expr(`2 * ((%s) > bool %s)`, slowShare(t, t.BurnFastLong), num(t.BurnFast*(1-t.LatencyObjective))),
	)
}

// commitVerdict: the offset commit follows the database commit, and does not
// fall behind.
func commitVerdict(t alerts.Thresholds) string {
	lag := expr(`max by (%s) (%s)`, perGroup, sel("consumer_offset_commit_lag_seconds"))
	before := expr(`max by (%s) (avg_over_time(%s[1h]))`, perGroup, sel("consumer_offset_commit_lag_seconds"))
	return worst(
		expr(`(%s > bool %s) * (%s > bool %s * %s)`, lag, num(t.CommitLagWarning), lag, num(t.CommitLagFactor), before),
		expr(`2 * (%s > bool %s)`, lag, num(t.CommitLagCritical)),
	)
}

// traceVerdict is what metrics can say of the log fields: a duplicate can be
// traced to the delivery it repeats. The consumer counts the origin of every
// duplicate whose marker it could read.
func traceVerdict() string {
	return expr(`
		sum by (%[1]s) (increase(%[2]s[1h]))
		- (sum by (%[1]s) (increase(%[3]s[1h])) or 0 * sum by (%[1]s) (increase(%[2]s[1h])))
		> bool 1`,
		perGroup, sel("events_handled_total", `outcome="duplicate"`), sel("events_duplicate_origin_total"))
}

func num(f float64) string { return strings.TrimSuffix(fmt.Sprintf("%.10g", f), ".0") }
