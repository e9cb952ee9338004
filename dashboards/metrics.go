package dashboards

import (
	"fmt"
	"slices"
	"strings"
)

// variables are the dashboards' selectors in the order they depend on one
// another: each one's choices follow from those before it.
//
// All is ".*" everywhere. The linter prescribes ".+" for job and instance, for
// which Prometheus merges the lists of series of every value: with a thousand
// consumers that takes most of a query's time.
var variables = []struct{ name, label, all, query string }{
	{"cluster", "Cluster", ".*", `label_values(oncewatch_build_info, cluster)`},
	{"job", "Job", ".*", `label_values({__name__=~"oncewatch_build_info|events_handled_total|marker_prune_deleted_total",cluster=~"$cluster"}, job)`},
	{"instance", "Instance", ".*", `label_values({__name__=~"oncewatch_build_info|events_handled_total|marker_prune_deleted_total",cluster=~"$cluster",job=~"$job"}, instance)`},
	{"database", "Database", ".*", `label_values(processed_events_row_count{cluster=~"$cluster",job=~"$job",instance=~"$instance"}, database)`},
	{"consumer_group", "Consumer group", ".*", `label_values({__name__=~"processed_events_row_count|consumer_group_topic_info|events_handled_total",cluster=~"$cluster",job=~"$job",instance=~"$instance"}, consumer_group)`},
	{"topic", "Topic", ".*", `label_values({__name__=~"consumer_group_topic_info|events_handled_total",cluster=~"$cluster",job=~"$job",instance=~"$instance",consumer_group=~"$consumer_group"}, topic)`},
}

// metrics are the metrics the dashboards query, with the labels that the
// programs give them. A query can only be written for a metric of this table,
// and gets a matcher for every variable whose label the metric has.
var metrics = map[string][]string{
	"processed_events_row_count":                         {"database", "consumer_group", "topic"},
	"processed_events_oldest_age_seconds":                {"database", "consumer_group", "topic"},
	"processed_events_inserted_total":                    {"database", "consumer_group", "topic"},
	"processed_events_pruned_total":                      {"database", "consumer_group", "topic"},
	"processed_events_observed_retention_seconds":        {"database", "consumer_group", "topic"},
	"processed_events_configured_retention_seconds":      {"database", "consumer_group"},
	"processed_events_unprotected_records":               {"database", "consumer_group", "topic", "partition"},
	"processed_events_unverified_records":                {"database", "consumer_group", "topic", "partition"},
	"processed_events_safe_rewind_seconds":               {"database", "consumer_group", "topic"},
	"processed_events_divergent_rows":                    {"database", "consumer_group", "kind"},
	"processed_events_row_limit":                         {"database", "consumer_group"},
	"processed_events_table_bytes":                       {"database"},
	"processed_events_index_bytes":                       {"database", "index"},
	"processed_events_dead_rows":                         {"database"},
	"processed_events_last_vacuum_timestamp_seconds":     {"database"},
	"processed_events_index_bloat_ratio":                 {"database", "index"},
	"processed_events_xmin_horizon_age_seconds":          {"database", "holder"},
	"kafka_topic_retention_seconds":                      {"topic"},
	"kafka_topic_worst_case_retention_seconds":           {"topic"},
	"kafka_topic_oldest_record_age_seconds":              {"topic", "partition"},
	"consumer_lag":                                       {"consumer_group", "topic", "partition"},
	"consumer_lag_seconds":                               {"consumer_group", "topic", "partition"},
	"consumer_records_expired":                           {"consumer_group", "topic", "partition"},
	"consumer_records_expired_unverified":                {"consumer_group", "topic", "partition"},
	"consumer_committed_offset":                          {"consumer_group", "topic", "partition"},
	"consumer_group_topic_subscribed":                    {"consumer_group", "topic"},
	"consumer_offset_out_of_range":                       {"consumer_group", "topic", "partition"},
	"consumer_group_topic_info":                          {"consumer_group", "topic"},
	"consumer_group_members":                             {"consumer_group"},
	"oncewatch_collector_success":                        {"collector"},
	"oncewatch_collector_last_success_timestamp_seconds": {"collector"},
	"oncewatch_collector_interval_seconds":               {"collector"},
	"oncewatch_errors_total":                             {"collector", "kind"},
	"oncewatch_ledger_ready":                             {"database"},
	"oncewatch_ledger_inexact":                           {"database", "reason"},
	"oncewatch_ledger_corrections_total":                 {"database"},
	"oncewatch_ledger_scrub_age_seconds":                 {"database"},
	"oncewatch_build_info":                               {"goarch", "goos", "goversion", "revision", "tags"},

	"events_handled_total":                        {"consumer_group", "topic", "outcome"},
	"events_duplicate_origin_total":               {"consumer_group", "topic", "origin"},
	"event_handle_duration_seconds":               {"consumer_group", "topic"},
	"event_handle_duration_seconds_bucket":        {"consumer_group", "topic", "le"},
	"consumer_offset_commit_lag_seconds":          {"consumer_group", "topic", "partition"},
	"event_retries_total":                         {"consumer_group", "topic"},
	"events_dead_lettered_total":                  {"consumer_group", "topic", "reason"},
	"events_lost_total":                           {"consumer_group", "topic", "partition"},
	"consumer_rebalances_total":                   {"consumer_group"},
	"consumer_start_time_seconds":                 {"consumer_group"},
	"outbox_oldest_pending_age_seconds":           {"consumer_group"},
	"outbox_deliveries_total":                     {"consumer_group", "outcome"},
	"marker_prune_deleted_total":                  {},
	"marker_prune_batch_duration_seconds_bucket":  {"le"},
	"marker_prune_last_success_timestamp_seconds": {},
}

// sel returns the selector of a metric, narrowed by the dashboard's variables
// and by further matchers. It panics on a metric that is not in the table: that
// is a mistake in this package, which its tests cannot miss.
func sel(metric string, matchers ...string) string {
	labels, ok := metrics[metric]
	if !ok {
		panic(fmt.Sprintf("dashboards: no metric %q in the table", metric))
	}
	all := []string{`cluster=~"$cluster"`, `job=~"$job"`, `instance=~"$instance"`}
	for _, v := range []string{"database", "consumer_group", "topic"} {
		switch {
		case !slices.Contains(labels, v):
		case v == "topic" && strings.HasPrefix(metric, "processed_events_"):
			// A marker table without a topic column has no topic label: such
			// series stay visible whatever topic is selected.
			all = append(all, `topic=~"$topic|"`)
		default:
			all = append(all, fmt.Sprintf(`%s=~"$%s"`, v, v))
		}
	}
	return metric + "{" + strings.Join(append(all, matchers...), ",") + "}"
}
