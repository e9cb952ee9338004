package dashboards

import (
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/common/model"
)

// Every aggregation keeps the optional cluster label, and folds two replicas of
// the exporter, which report the same facts, with max or min, never with sum.

// perGroup is the key of a verdict: one consumer group.
const (
	perGroup     = "cluster, consumer_group"
	perTopic     = perGroup + ", topic"
	perPartition = perTopic + ", partition"
)

// expr formats a PromQL expression on one line.
func expr(format string, args ...any) string {
	return strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ")
}

// replicated sums an exporter's counter over what is not in the key, within one
// replica, and takes the replica that saw most.
func replicated(key, rate string) string {
	return expr(`max by (%s) (sum by (%s, job, instance) (%s))`, key, key, rate)
}

// byPartition folds replicas and stores.
func byPartition(metric, offset string) string {
	return expr(`max by (%s) (%s%s)`, perPartition, sel(metric), offset)
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

// quantile is a quantile of the handle duration by consumer group.
func quantile(q float64) string {
	return expr(`
		histogram_quantile(%[1]s, sum by (%[2]s, le) (rate(%[3]s[$__rate_interval])))
		or
		histogram_quantile(%[1]s, sum by (%[2]s) (rate(%[4]s[$__rate_interval])))`,
		num(q), perGroup, sel("event_handle_duration_seconds_bucket"), sel("event_handle_duration_seconds"))
}

// tenOf draws the ten partitions where a gauge was highest in the time range,
// and in one more line how many there are besides and the highest of these.
func tenOf(metric, legend string) []query {
	all := byPartition(metric, "")
	ten := expr(`topk(10, max by (%s) (max_over_time(%s[$__range] @ end())))`, perPartition, sel(metric))
	return []query{
		{expr: expr(`%s and %s`, all, ten), legend: legend},
		{
			expr: expr(`max(%s unless %s) * on () group_left (more) count_values("more", count(%s) - 10 > 0)`,
				all, ten, expr(`max by (%s) (last_over_time(%s[$__range] @ end()))`, perPartition, sel(metric))),
			legend: "{{more}} more, at most",
		},
	}
}

// inMinutes shows seconds in minutes.
func inMinutes(queries []query) []query {
	for i, q := range queries {
		queries[i].expr = expr(`(%s) / 60`, q.expr)
	}
	return queries
}

// Graphs of what may last long have one unit each: Grafana's own goes over from
// seconds to weeks, and its ticks are odd ("16.7 mins").
const (
	hours        = "suffix:h"
	minutes      = "suffix:min" // what is short when it is well
	wholeSeconds = "suffix:s"   // what is very short when it is well
)

func num(f float64) string { return strings.TrimSuffix(fmt.Sprintf("%.10g", f), ".0") }

// seconds writes a duration for PromQL.
func seconds(d time.Duration) string { return model.Duration(d).String() }

func duration(d model.Duration) time.Duration { return time.Duration(d) }
