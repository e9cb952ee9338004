package dashboards

import (
	"fmt"
	"strings"
	"time"

	"oncewatch/alerts"
)

// The verdicts as the queries return them, the worst the highest: what is not
// known ranks above what holds. The words are those of the exporter's own page.
const (
	isHolding = iota
	isUnknown
	isWarning
	isViolated
)

// A question is one column of the overview: what makes its answer bad, and what
// has to be known before it may be called good. Each expression has a series for
// every consumer group (and whatever else) of which it is true.
type question struct {
	name     string
	good     string // when it holds, for a person
	violated []string
	warning  []string
	known    []string // all of them must be true of a group that holds
	alerts   string   // alerts that answer it, by their severity
}

// questions are asked of every consumer group, in the order in which a person
// asks them.
func questions(t alerts.Thresholds) []question {
	return []question{appliedOnce(t), keepsUp(t), replayable(t), watched(t)}
}

// verdict is the answer for each consumer group: the first of the four that has
// a reason. A group that nothing is known of is unknown.
func (q question) verdict() string {
	firing := func(severity string) string {
		return expr(`ALERTS{alertstate="firing",severity=%q,alertname=~%q,consumer_group=~"$consumer_group"}`, severity, q.alerts)
	}
	any := func(signals ...string) string {
		for i, s := range signals {
			signals[i] = expr(`group by (%s) (%s)`, perGroup, s)
		}
		return strings.Join(signals, " or ")
	}
	known := ""
	for _, k := range q.known {
		known += expr(` and on (%s) (%s)`, perGroup, k)
	}
	return expr(`%d * (%s) or %d * (%s) or %d * (%s unless on (%s) (%s%s)) or %d * %s`,
		isViolated, any(append(q.violated, firing("critical"))...),
		isWarning, any(append(q.warning, firing("warning"))...),
		isUnknown, groups(), perGroup, groups(), known,
		isHolding, groups())
}

// groups are the consumer groups that there are, or were in the last hours: one
// that has vanished with its exporter is unknown, and not gone.
func groups() string {
	var seen []string
	for _, s := range []string{sel("consumer_group_topic_info"), sel("processed_events_row_count"), sel("events_handled_total")} {
		for _, before := range []string{"", " offset 30m", " offset 1h", " offset 6h"} {
			seen = append(seen, s+before)
		}
	}
	return expr(`group by (%s) (%s or ALERTS{alertstate="firing",alertname=~%q,consumer_group=~"$consumer_group",consumer_group!=""})`,
		perGroup, strings.Join(seen, " or "), ours)
}

// trouble orders the consumer groups: the gravest verdict first, then how many
// questions have it. A verdict weighs more than all four questions of the next.
func trouble(t alerts.Thresholds) string {
	var sum []string
	for _, q := range questions(t) {
		sum = append(sum, expr(`floor(5 ^ ((%s) - 1))`, q.verdict()))
	}
	return strings.Join(sum, " + ")
}

// atFault are the groups of each verdict as far as it can be told at a glance: by
// the alerts that fire, and by the counts whose every unit is a fault, as the alert
// rules have recorded them. All four verdicts of a thousand groups would take many
// seconds, and so would the counts of their partitions.
func atFault() []string {
	firing := func(severity string) string {
		return expr(`ALERTS{alertstate="firing",severity=%q,alertname=~%q,consumer_group=~"$consumer_group",consumer_group!=""}`, severity, ours)
	}
	group := func(series ...string) string {
		return expr(`group by (%s) (%s)`, perGroup, strings.Join(series, " or "))
	}
	return []string{
		isUnknown: group(firing("info"), noted("consumer_group_topic:processed_events_unverified_records:sum", "database", "topic")+" > 0"),
		isWarning: group(firing("warning"), noted("consumer_group_topic_partition:consumer_records_expired:max", "topic")),
		isViolated: group(firing("critical"), sel("processed_events_divergent_rows")+" > 0",
			noted("consumer_group_topic:processed_events_unprotected_records:sum", "database", "topic")+" > 0"),
	}
}

// without is the weight of a group of which nothing is seen: that of what is not
// known where no rules are evaluated.
func without() string {
	return expr(`(%s - scalar(clamp_max(count(%s{cluster=~"$cluster"}) or vector(0), 1)))`, groups(), rulesProof)
}

// noted selects what the alert rules have recorded, which has the labels of the
// rule and of no target.
func noted(record string, labels ...string) string {
	matchers := `cluster=~"$cluster",consumer_group=~"$consumer_group"`
	for _, l := range labels {
		matchers += fmt.Sprintf(`,%[1]s=~"$%[1]s|"`, l)
	}
	return record + "{" + matchers + "}"
}

// seen is the trouble of every group that can be told at a glance, for choosing
// those that are listed and drawn.
func seen() string {
	worse := atFault()
	return expr(`%s * %s or %s * %s or %s * %s or %s`, num(weight(isViolated)), worse[isViolated],
		num(weight(isWarning)), worse[isWarning], num(weight(isUnknown)), worse[isUnknown], without())
}

// weight is the least trouble of a group whose worst verdict is this one.
func weight(verdict int) float64 {
	return [...]float64{isHolding: 0, isUnknown: 1, isWarning: 5, isViolated: 25}[verdict]
}

// appliedOnce: no event was lost, none is applied without its marker or marked
// without its effect.
func appliedOnce(t alerts.Thresholds) question {
	expired := byPartition("consumer_records_expired", "")
	// Of these, records that may have been no events: a transaction's markers.
	unverified := byPartition("consumer_records_expired_unverified", "")
	lost := sel("events_lost_total")
	return question{
		name: "Applied once",
		good: "marker and effect are compared and belong together, nothing expired unread, no gap in a producer's sequence",
		violated: []string{
			sel("processed_events_divergent_rows") + " > 0",
			expr(`(%[1]s - %[2]s > 0 or (%[1]s > 0 unless %[2]s)) unless on (%[3]s) %[4]s`, expired, unverified, perTopic, hasLeft()),
			expr(`%[1]s - %[1]s offset 1h > 0 or (%[1]s > 0 unless %[1]s offset 1h)`, lost),
		},
		warning: []string{
			expr(`%s > 0 unless on (%s) %s`, expired, perTopic, hasLeft()),
			expr(`increase(%s[%s]) > 0`, sel("events_dead_lettered_total"), t.LostWindow),
		},
		known: []string{
			sel("processed_events_divergent_rows"),
			sel("processed_events_row_count"),
			sel("consumer_records_expired"),
		},
		alerts: "MarkerEffectDivergence|EventsLost|ProcessedEventsTableEmpty|ProducerEventIdReuse|EventsDeadLettered|OutboxStuck|ConsumerDuplicateRatioHigh|ProcessedEventsEntriesUnfinished",
	}
}

// keepsUp: what waits is being handled, long before it expires.
func keepsUp(t alerts.Thresholds) question {
	lag := expr(`max by (%s) (%s)`, perTopic, sel("consumer_lag"))
	waiting := expr(`%s > %s`, lag, num(t.StalledLag))
	standing := expr(`%s and %s and %s <= 0 unless on (%s) sum by (%s) (increase(%s[%s])) > 0 unless on (%s) %s`,
		waiting, expr(`max by (%s) (%s offset %s) > %s`, perTopic, sel("consumer_lag"), t.StalledWindow, num(t.StalledLag)),
		progress(t), perTopic, perTopic, sel("events_handled_total"), t.StalledWindow, perTopic, hasLeft())
	late := func(share float64) string {
		return expr(`%s > %s unless on (%s) %s`, usedRetention(), num(share), perTopic, hasLeft())
	}
	return question{
		name: "Keeps up",
		good: "what waits is being handled, and more than half of the topic's retention is left for it",
		violated: []string{
			expr(`%s unless on (%s) %s == 0`, standing, perGroup, sel("consumer_group_members")),
			expr(`%s > %s`, starts(t), num(t.StalledRestarts)),
			late(t.ExpiringShare),
			expr(`%s > %s`, sel("consumer_offset_commit_lag_seconds"), num(t.CommitLagCritical)),
		},
		warning: []string{
			standing, // of a group without members: it was stopped
			late(t.ExpiringSoonShare),
			expr(`%s > %s and %s > 3600`, lag, num(t.LagMin), expr(`max by (%s) (%s)`, perTopic, sel("consumer_lag_seconds"))),
		},
		known: []string{
			sel("consumer_lag"),
			// Where something waits, whether it is worked off and how long it may.
			expr(`%s unless on (%s) (%s unless on (%s) (%s and %s))`, groups(), perGroup, waiting, perTopic, progress(t), usedRetention()),
		},
		alerts: "ConsumerStalled|ConsumerRecordsExpiring|ConsumerRecordsExpiringSoon|ConsumerLagNotRecoveringAfterRestart|ConsumerLagGrowing|ConsumerRebalanceLoop|ConsumerHandleLatency.+|ConsumerOffsetCommitLag.+|ConsumerRetryVolumeHigh",
	}
}

// replayable: a reset of the group to the earliest offset changes nothing.
func replayable(t alerts.Thresholds) question {
	observed := againstRetention("processed_events_observed_retention_seconds")
	kept := expr(`count by (%s) (%s)`, perTopic, byPartition("processed_events_unprotected_records", ""))
	committed := expr(`count by (%s) (%s)`, perTopic, byPartition("consumer_committed_offset", ""))
	return question{
		name: "Replayable",
		good: "every record on the broker that the group has passed is known to have its marker",
		violated: []string{
			sel("processed_events_unprotected_records") + " > 0",
			expr(`(%s) < %s`, observed, num(t.RetentionRatioCritical)),
			expr(`(%s) < %s`, configuredAgainstRetention(), num(t.RetentionRatioWarning)),
		},
		warning: []string{expr(`(%s) < %s`, observed, num(t.RetentionRatioWarning))},
		known: []string{
			expr(`max by (%s) (%s) == 0`, perGroup, sel("processed_events_unprotected_records")),
			expr(`max by (%s) (%s) == 0`, perGroup, sel("processed_events_unverified_records")),
			// Of every partition that the group has committed on.
			expr(`%s unless on (%s) (%s unless (%s >= %s))`, groups(), perGroup, committed, kept, committed),
		},
		alerts: "ProcessedEventsReplayExposed|ProcessedEventsRetention.+|ProcessedEventsMarkersMassDeleted|ConsumerOffsetsMissing",
	}
}

// watched: the exporter is there, reads everything in time and counts exactly.
func watched(t alerts.Thresholds) question {
	firing := func(severity string) string {
		return expr(`%s and on (cluster) ALERTS{alertstate="firing",severity=%q,alertname=~"ProcessedEventsExporter.+"}`, groups(), severity)
	}
	return question{
		name: "Watched",
		good: "an exporter is scraped, each of its collectors has succeeded lately, and markers and commits of the group are read",
		violated: []string{
			expr(`%s unless on (cluster) %s`, groups(), sel("oncewatch_build_info")),
			expr(`%s and on (cluster) (%s)`, groups(), stale(t)),
			firing("critical"),
		},
		warning: []string{
			expr(`%s and on (cluster) max by (cluster, collector) (%s) == 0`, groups(), sel("oncewatch_collector_success", `collector!="consumers"`)),
			expr(`%s and on (cluster, database) %s > 0`, sel("processed_events_row_count"), sel("oncewatch_ledger_inexact")),
			firing("warning"),
		},
		known: []string{
			sel("processed_events_row_count"), // withheld until all are counted
			sel("consumer_group_topic_info"),
			expr(`%s and on (cluster) %s`, groups(), sel("oncewatch_collector_last_success_timestamp_seconds")),
		},
		alerts: "ConsumerMetricsAbsent",
	}
}

// hasLeft are the topics that no member of the group consumes any more: what
// waits there is nobody's.
func hasLeft() string {
	return expr(`max by (%s) (%s) == 0`, perTopic, sel("consumer_group_topic_subscribed"))
}

// progress is how many records the group has passed lately, by topic: by its
// committed offsets, else as its consumers count them.
func progress(t alerts.Thresholds) string {
	return expr(`(sum by (%[1]s) (%[2]s - %[3]s) or sum by (%[1]s) (increase(%[4]s[%[5]s])))`,
		perTopic, byPartition("consumer_committed_offset", ""), byPartition("consumer_committed_offset", " offset "+t.StalledWindow.String()),
		sel("events_handled_total"), t.StalledWindow)
}

// usedRetention is the share of the topic's retention that the oldest waiting
// record has used, by group and topic.
func usedRetention() string {
	return expr(`max by (%s) (%s) / on (cluster, topic) group_left () %s`, perTopic, sel("consumer_lag_seconds"), topicRetention())
}

// starts is how often consumers of a group were started in two windows: a start
// is told by its time, since a counter begins anew with each. Targets come and
// go with a crash loop that is given a new name each time.
func starts(t alerts.Thresholds) string {
	window := 2 * time.Duration(t.StalledWindow)
	s := fmt.Sprintf("%s[%s]", sel("consumer_start_time_seconds"), seconds(window))
	return expr(`sum by (%s) (changes(%s) + (min_over_time(%s) > bool (time() - %s)))`, perGroup, s, s, num(window.Seconds()))
}

// stale are the collectors whose last success, on any replica, was too long ago
// when it was scraped: however rarely that is.
func stale(t alerts.Thresholds) string {
	return expr(`min by (cluster, collector) (timestamp(%[1]s) - %[1]s) > %[2]s + %[3]s * max by (cluster, collector) (%[4]s)`,
		sel("oncewatch_collector_last_success_timestamp_seconds", `collector!="consumers"`),
		num(time.Duration(t.ClockSkew).Seconds()), num(t.StaleIntervals), sel("oncewatch_collector_interval_seconds"))
}
