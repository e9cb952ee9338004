package dashboards

import (
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"

	"oncewatch/alerts"
)

// group answers, for one consumer group: why is not every event applied once?
func group(t alerts.Thresholds, pageURL string) page {
	byTopic := "cluster, consumer_group, topic"
	// consumed narrows a topic's metric to the topics of the selected groups.
	consumed := func(metric string) string {
		return expr(`max by (cluster, topic) (%s) / 3600 and on (cluster, topic) %s`, sel(metric), sel("consumer_group_topic_info"))
	}
	noConsumer := "no consumer of this group exports it, or none is scraped in the selected job"
	noBroker := "the exporter has read no commits of this group; is its collector groups up?"
	noOutbox := "no consumer with an outbox is scraped for this group"
	return page{
		uid:         groupUID,
		title:       "oncewatch / Why not?",
		description: "One consumer group, from its markers' retention to its outbox. Select one group above.",
		from:        "now-6h",
		oneGroup:    true,
		rows: []row{
			{"In one look", []panel{answers(t, "The group's answers", pageURL, 4, func(e string) string { return e })}},
			{"Do the markers outlive the records?", []panel{
				{
					title: "Inserted against pruned",
					description: "Markers that appear and vanish per second. Good: the two meet once the table is as old as its retention. " +
						"Inserted at 0 while events are processed: the handler writes no marker. Pruned far above inserted for long: someone deletes by hand.",
					noData: "the ledger has not counted yet; see the last row of Will the table hold?", unit: "rowsps",
					runbooks: []string{"ProcessedEventsGrowthOutpacesPruning", "ProcessedEventsMarkersMassDeleted", "ProcessedEventsTableEmpty", "ProcessedEventsEntriesUnfinished"},
					width:    8, height: 8,
					queries: []query{
						{expr: replicated(perGroup, expr(`rate(%s[$__rate_interval])`, sel("processed_events_inserted_total"))), legend: "{{consumer_group}} inserted"},
						{expr: replicated(perGroup, expr(`rate(%s[$__rate_interval])`, sel("processed_events_pruned_total"))), legend: "{{consumer_group}} pruned"},
					},
					draw: lines(),
				},
				{
					title: "Retention: kept against needed",
					description: "What the pruner really keeps (observed) and is told to keep (configured) against what the broker keeps (topic) and can keep when segments close late (worst case). " +
						"Good: observed and configured above topic × " + num(t.RetentionRatioWarning) + ", better above the worst case. Otherwise raise the pruner's retention before anything else. Unlimited retention has no line.",
					noData: "neither the pruner's nor the broker's retention is exported; see the collectors on the overview", unit: hours,
					runbooks: []string{"ProcessedEventsRetentionMisconfigured", "ProcessedEventsRetentionBelowBroker"},
					width:    8, height: 8,
					queries: []query{
						{expr: expr(`min by (cluster, database, consumer_group, topic) (%s) / 3600`, sel("processed_events_observed_retention_seconds")), legend: "observed {{consumer_group}} {{topic}}"},
						{expr: expr(`min by (cluster, database, consumer_group) (%s) / 3600`, sel("processed_events_configured_retention_seconds")), legend: "configured {{consumer_group}}"},
						{expr: consumed("kafka_topic_retention_seconds"), legend: "topic {{topic}}"},
						{expr: consumed("kafka_topic_worst_case_retention_seconds"), legend: "worst case {{topic}}"},
					},
					draw: lines(),
				},
				{
					title: "Oldest record against oldest marker",
					description: "Good: the marker's line above the record's. Where the record is older, the records between the two have no marker any more: a reset applies them again. " +
						"In a young table both lines rise together.",
					noData: "neither a marker's nor a record's age is exported; see the collectors on the overview", unit: hours,
					runbooks: []string{"ProcessedEventsReplayExposed", "ProcessedEventsReplayUnverified"},
					width:    8, height: 8,
					queries: []query{
						{expr: expr(`min by (cluster, database, consumer_group, topic) (%s) / 3600`, sel("processed_events_oldest_age_seconds")), legend: "marker {{consumer_group}} {{topic}}"},
						{expr: consumed("kafka_topic_oldest_record_age_seconds"), legend: "record {{topic}}"},
					},
					draw: lines(),
				},
			}},
			{"What do the transactions do?", []panel{
				{
					title: "Duration of the whole transaction",
					description: "Each column is one interval, each cell the events that took so long. Good: one dark band far below " + num(1000*t.LatencyP99) + " ms. " +
						"A second band above it is contention: locks, checkpoints, a held-back vacuum, then a bloated index. A dot is an exemplar: it opens the event's trace.",
					noData: noConsumer, unit: "s",
					runbooks: []string{"ConsumerHandleLatencyP99High", "ConsumerHandleLatencyBudgetBurn"},
					width:    12, height: 9,
					queries: []query{{
						expr: expr(`sum by (le) (rate(%s[$__rate_interval])) or on () sum(rate(%s[$__rate_interval]))`,
							sel("event_handle_duration_seconds_bucket"), sel("event_handle_duration_seconds")),
						legend: "{{le}}", exemplars: true,
					}},
					draw: buckets,
				},
				{
					title: "Median and 99th percentile",
					description: "Good: the 99th percentile below " + num(1000*t.LatencyP99) + " ms (dashed). " +
						"If only the 99th rises, look for locks and checkpoints; if both rise, for the index and the disk. Dots are exemplars and open the trace.",
					noData: noConsumer, unit: "s",
					runbooks: []string{"ConsumerHandleLatencyP99High"},
					steps:    []step{{t.LatencyP99, warning}}, width: 12, height: 9,
					queries: []query{
						{expr: quantile(0.99), legend: "{{consumer_group}} 99th percentile", exemplars: true},
						{expr: quantile(0.5), legend: "{{consumer_group}} median"},
					},
					draw: lines(),
				},
				{
					title: "Handled per second",
					description: "Good: processed follows the producer, duplicates are a thin line at the bottom. " +
						"Duplicates as high as processed: a replay. Nothing at all with lag above 0: the consumer stands still.",
					noData: noConsumer, unit: "eps",
					runbooks: []string{"ConsumerMetricsAbsent"},
					width:    8, height: 7,
					queries: []query{{expr: expr(`sum by (%s, outcome) (rate(%s[$__rate_interval]))`, perGroup, sel("events_handled_total")), legend: "{{consumer_group}} {{outcome}}"}},
					draw:    lines(),
				},
				{
					title: "Where duplicates come from",
					description: "same_offset: the broker delivered a record again, as after a restart or a rebalance. other_offset: the producer published the id twice. " +
						"Good: only same_offset, and in step with restarts. other_offset: find the producer, ids must be unique for each event.",
					noData: "no consumer of this group exports where duplicates come from, or none is scraped", unit: "eps",
					runbooks: []string{"ProducerEventIdReuse", "ConsumerRebalanceLoop"},
					width:    8, height: 7,
					queries: []query{{expr: expr(`sum by (%s, origin) (rate(%s[$__rate_interval]))`, perGroup, sel("events_duplicate_origin_total")), legend: "{{consumer_group}} {{origin}}"}},
					draw:    lines(),
				},
				{
					title: "Offset commit behind the database commit",
					description: "Time from a database commit to the offset commit that covers it. Good: below " + num(t.CommitLagWarning) + " s. " +
						"While it grows, a crash redelivers ever more events: harmless with markers, but look for a slow broker or a stuck commit. Above " + num(t.CommitLagCritical) + " s restart the consumer.",
					noData: noConsumer, unit: wholeSeconds,
					runbooks: []string{"ConsumerOffsetCommitLagWidening", "ConsumerOffsetCommitLagHigh"},
					steps:    []step{{t.CommitLagWarning, warning}, {t.CommitLagCritical, violated}}, width: 8, height: 7,
					queries: []query{{expr: expr(`max by (%s) (%s)`, byTopic, sel("consumer_offset_commit_lag_seconds")), legend: "{{consumer_group}} {{topic}}"}},
					draw:    lines(),
				},
			}},
			{"Does the group keep up?", []panel{
				{
					title:       "Lag in records, by partition",
					description: "Good: near 0 everywhere. One partition alone: a poison event, a slow owner or a skewed key. All of them: too few consumers.",
					noData:      noBroker, unit: "short",
					runbooks: []string{"ConsumerLagGrowing", "ConsumerLagNotRecoveringAfterRestart", "ConsumerStalled", "ConsumerOffsetsMissing"},
					steps:    []step{{t.LagMin, warning}}, width: 8, height: 7,
					queries: tenOf("consumer_lag", "{{topic}} {{partition}}"),
					draw:    lines(wholeNumbers),
				},
				{
					title:       "Lag in time, by partition",
					description: "Age of the oldest record not committed past. Good: seconds. It grows by a second a second on a partition that stands still, also when its producer has stopped.",
					noData:      noBroker, unit: minutes,
					runbooks: []string{"ConsumerLagGrowing", "ConsumerRecordsExpiringSoon", "ConsumerRecordsExpiring"},
					width:    8, height: 7,
					queries: inMinutes(tenOf("consumer_lag_seconds", "{{topic}} {{partition}}")),
					draw:    lines(aMinute),
				},
				{
					title: "Commits outside the log",
					description: "Records deleted before the group committed past them, and partitions whose committed offset lies outside the log (1). Good: all 0. " +
						"Otherwise the next fetch resets the group: events are lost, or replayed. Decide the offset by hand before a restart does.",
					noData: noBroker, unit: "short",
					runbooks: []string{"EventsLost"},
					steps:    []step{{1, violated}}, width: 8, height: 7,
					queries: append(tenOf("consumer_records_expired", "{{topic}} {{partition}} expired"),
						query{expr: expr(`topk(10, max by (%s) (%s) > 0)`, perPartition, sel("consumer_offset_out_of_range")), legend: "{{topic}} {{partition}} out of range"}),
					draw: lines(shouldBeZero),
				},
				{
					title: "Rebalances, starts and members",
					description: "Starts are told by their times, since a counter begins anew with each. Good: rebalances and starts only when you deploy, members as many as you run. " +
						"Either of them every few minutes redelivers what was in flight each time: raise the session and poll timeouts, or find the member that dies.",
					noData: noConsumer, unit: "short",
					runbooks: []string{"ConsumerRebalanceLoop", "ConsumerStalled"},
					width:    8, height: 7,
					queries: []query{
						{expr: expr(`max by (%s) (increase(%s[%s]))`, perGroup, sel("consumer_rebalances_total"), seconds(2*duration(t.StalledWindow))), legend: "rebalances in " + seconds(2*duration(t.StalledWindow))},
						{expr: starts(t), legend: "starts in " + seconds(2*duration(t.StalledWindow))},
						{expr: expr(`max by (%s) (%s)`, perGroup, sel("consumer_group_members")), legend: "members"},
					},
					draw: lines(shouldBeZero),
				},
				{
					title: "Time since each consumer was started",
					description: "Good: lines that rise. One that falls back to 0 again and again crashes in a loop; one that stays at 0 crashes faster than it is scraped. " +
						"Lines that end one after the other are consumers that come back under another name.",
					noData: noConsumer, unit: hours,
					runbooks: []string{"ConsumerRebalanceLoop"},
					width:    8, height: 7,
					queries: []query{{expr: expr(`bottomk(10, clamp_min(time() - max by (%s, instance) (%s), 0)) / 3600`, perGroup, sel("consumer_start_time_seconds")), legend: "{{instance}}"}},
					draw:    lines(),
				},
				{
					title: "Gaps in the producers' sequences",
					description: "Events that a producer numbered and this group never saw, by partition. Good: 0. " +
						"Otherwise compare with expired commits above: the broker deleted them; without those, the producer never got them acknowledged.",
					noData: "no consumer counts gaps, none is scraped, or the producers number nothing", unit: "short",
					runbooks: []string{"EventsLost"},
					steps:    []step{{1, violated}}, width: 8, height: 7,
					queries: []query{{expr: expr(`topk(10, sum by (%s) (increase(%s[$__rate_interval])) > 0) or topk(1, 0 * sum by (%s) (increase(%s[$__rate_interval])))`, perPartition, sel("events_lost_total"), perPartition, sel("events_lost_total")), legend: "{{topic}} {{partition}}"}},
					draw:    lines(bars, shouldBeZero),
				},
			}},
			{"What becomes of the effects?", []panel{
				{
					title:       "Retries as a share of what is handled",
					description: "Good: below " + num(100*t.RetryRatio) + " %. Drawn up to 100 %, where nothing gets through. Above: the database refuses transactions for a passing reason (serialization, deadlock, failover). The consumer's log names the SQLSTATE.",
					noData:      noConsumer, unit: "percentunit",
					runbooks: []string{"ConsumerRetryVolumeHigh"},
					steps:    []step{{t.RetryRatio, warning}}, width: 8, height: 7,
					queries: []query{{
						expr: expr(`clamp_max(sum by (%[1]s) (rate(%[2]s[$__rate_interval])) / sum by (%[1]s) (rate(%[3]s[$__rate_interval])), 1)`,
							perGroup, sel("event_retries_total"), sel("events_handled_total")),
						legend: "{{consumer_group}}",
					}},
					draw: lines(func(b *timeseries.PanelBuilder) { b.Min(0).AxisSoftMax(2 * t.RetryRatio) }),
				},
				{
					title:       "Dead letters",
					description: "Events that ended in the dead-letter table, by reason. Good: 0. Each one is an effect that did not happen: read it with reference-consumer deadletters, mend, requeue.",
					noData:      "no consumer exports dead letters, or none is scraped; the reference consumer exports them from the first one on", unit: "short",
					runbooks: []string{"EventsDeadLettered"},
					steps:    []step{{1, warning}}, width: 8, height: 7,
					queries: []query{{expr: expr(`sum by (%s, reason) (increase(%s[$__rate_interval]))`, perGroup, sel("events_dead_lettered_total")), legend: "{{consumer_group}} {{reason}}"}},
					draw:    lines(bars),
				},
				{
					title: "Markers and effects that diverge",
					description: "Rows of a closed window whose marker and effect were not written by one transaction, by kind. Good: 0. " +
						"marker_without_effect: an effect was lost. effect_without_marker: it can be repeated. different_transaction: a crash will do either.",
					noData: "no effect table is configured for this group, so marker and effect are not compared, or the exporter is not scraped", unit: "short",
					runbooks: []string{"MarkerEffectDivergence"},
					steps:    []step{{1, violated}}, width: 8, height: 7,
					queries: []query{{expr: expr(`max by (cluster, database, consumer_group, kind) (%s)`, sel("processed_events_divergent_rows")), legend: "{{consumer_group}} {{kind}}"}},
					draw:    lines(shouldBeZero),
				},
				{
					title:       "Outbox: oldest intent",
					description: "Age of the oldest intent not yet delivered. Good: seconds. Above " + num(t.OutboxPendingAge/60) + " min the receiver refuses or the worker is gone: the effect is committed, but its message is not out.",
					noData:      noOutbox, unit: minutes,
					runbooks: []string{"OutboxStuck"},
					steps:    []step{{t.OutboxPendingAge / 60, violated}}, width: 12, height: 7,
					queries: inMinutes([]query{{expr: expr(`max by (%s) (%s)`, perGroup, sel("outbox_oldest_pending_age_seconds")), legend: "{{consumer_group}}"}}),
					draw:    lines(aMinute),
				},
				{
					title:       "Outbox: deliveries per second",
					description: "Deliveries by outcome. Good: delivered only. Others are tried again; the receiver must be able to recognise a repeated intent by its key.",
					noData:      noOutbox, unit: "eps",
					runbooks: []string{"OutboxStuck"},
					width:    12, height: 7,
					queries: []query{{expr: expr(`sum by (%s, outcome) (rate(%s[$__rate_interval]))`, perGroup, sel("outbox_deliveries_total")), legend: "{{consumer_group}} {{outcome}}"}},
					draw:    lines(),
				},
			}},
		},
	}
}
