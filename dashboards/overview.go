package dashboards

import (
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"

	"oncewatch/alerts"
)

// overview answers: is every event applied once?
func overview(t alerts.Thresholds) page {
	return page{
		uid:         overviewUID,
		title:       "oncewatch / Is every event applied once?",
		description: "The checklist's verdicts by consumer group, and the evidence for them.",
		from:        "now-6h",
		rows: []row{
			{"Verdict", []panel{
				verdictTable(t, 7),
				{
					title: "Lowest marker age ÷ topic retention",
					description: "The oldest marker's age over the topic's retention, of the group that is worst off. " +
						"Good: above " + num(t.RetentionRatioWarning) + ". Below 1 with a pruner at work, a reset to the earliest offset applies events twice: stop the pruner, then raise its retention. " +
						"A table younger than the retention is below 1 without harm; the checklist above knows the difference.",
					noData: "No marker age or no topic retention is exported: see the exporter's collectors below", unit: "none",
					runbooks: []string{"ProcessedEventsRetentionBelowBroker", "ProcessedEventsRetentionRatioLow"},
					base:     violated, steps: []step{{t.RetentionRatioCritical, watch}, {t.RetentionRatioWarning, holds}},
					width: 6, height: 4,
					queries: []query{{expr: expr(`min(%s)`, againstRetention("processed_events_oldest_age_seconds")), legend: "lowest ratio"}},
					draw:    number,
				},
				{
					title: "Records a reset would apply twice",
					description: "Records still on the broker, below the committed offset, whose marker is known to be gone. Good: 0. " +
						"Otherwise do not reset any group to the earliest offset until they have expired, and raise the markers' retention.",
					noData: "Not known: the exporter needs both the marker table and the broker for this", unit: "short",
					runbooks: []string{"ProcessedEventsReplayExposed"},
					steps:    []step{{1, violated}}, width: 6, height: 4,
					queries: []query{{expr: expr(`sum(max by (%s, topic, partition) (%s))`, perGroup, sel("processed_events_unprotected_records")), legend: "records"}},
					draw:    number,
				},
				{
					title: "Events lost in the time range",
					description: "Gaps in the producers' sequences, and records that expired before the group handled them. Good: 0. " +
						"Otherwise find the partition on *Why not?*, and restore the events from their source: the broker no longer has them.",
					noData: "No consumer reports gaps and no lag is exported: is either scraped?", unit: "short",
					runbooks: []string{"EventsLost"},
					steps:    []step{{1, violated}}, width: 6, height: 4,
					queries: []query{{
						expr: expr(`sum(increase(%s[$__range])) + (sum(max by (%s, topic, partition) (%s)) or vector(0)) or sum(max by (%s, topic, partition) (%s))`,
							sel("events_lost_total"), perGroup, sel("consumer_records_expired"), perGroup, sel("consumer_records_expired")),
						legend: "events",
					}},
					draw: number,
				},
				{
					title: "Markers and effects that diverge",
					description: "Rows of a closed window where marker and effect were not written by one transaction. Good: 0. " +
						"Otherwise a handler writes on a connection of its own, and a crash between the two loses or repeats an effect.",
					noData: "No effect table is configured, so marker and effect are not compared", unit: "short",
					runbooks: []string{"MarkerEffectDivergence"},
					steps:    []step{{1, violated}}, width: 6, height: 4,
					queries: []query{{expr: expr(`sum(max by (cluster, database, consumer_group, kind) (%s))`, sel("processed_events_divergent_rows")), legend: "rows"}},
					draw:    number,
				},
			}},
			{"Evidence", []panel{
				{
					title: "Marker age ÷ topic retention",
					description: "Good: above " + num(t.RetentionRatioWarning) + " and flat, or rising by 1 s/s while a young table grows old. " +
						"A fall means that markers were deleted: by a pruner (then its retention is too short) or by hand.",
					noData: "No marker age or no topic retention is exported: see the exporter's collectors below", unit: "none",
					runbooks: []string{"ProcessedEventsRetentionRatioLow", "ProcessedEventsRetentionUnverifiable"},
					base:     violated, steps: []step{{t.RetentionRatioCritical, watch}, {t.RetentionRatioWarning, holds}},
					width: 12, height: 8,
					queries: []query{{expr: againstRetention("processed_events_oldest_age_seconds"), legend: "{{consumer_group}} {{topic}}"}},
					draw: lines(func(b *timeseries.PanelBuilder) {
						b.AxisSoftMax(1.1 * t.RetentionRatioWarning)
					}),
				},
				{
					title: "Duplicates as a share of what is handled",
					description: "Good: between " + num(100*t.DuplicateRatioMin) + " % and " + num(100*t.DuplicateRatioMax) + " % (the dashed lines), which redeliveries after restarts and rebalances explain. " +
						"Above: a rebalance loop, or a producer that reuses ids; *Why not?* tells them apart. Far below on a busy group: is deduplication reached at all?",
					noData: "No consumer exports events_handled_total, or nothing was handled", unit: "percentunit",
					runbooks: []string{"ConsumerDuplicateRatioHigh", "ConsumerDuplicateRatioTooLow"},
					base:     "blue", steps: []step{{t.DuplicateRatioMin, holds}, {t.DuplicateRatioMax, violated}},
					width: 12, height: 8,
					queries: []query{{
						expr: expr(`sum by (%[1]s) (rate(%[2]s[$__rate_interval])) / sum by (%[1]s) (rate(%[3]s[$__rate_interval]))`,
							perGroup, sel("events_handled_total", `outcome="duplicate"`), sel("events_handled_total")),
						legend: "{{consumer_group}}",
					}},
					// The band spans a factor of 50: on a linear axis its lower
					// edge lies on the axis. Symlog can also draw 0.
					draw: lines(func(b *timeseries.PanelBuilder) {
						b.Min(0).AxisSoftMax(2 * t.DuplicateRatioMax).
							ScaleDistribution(common.NewScaleDistributionConfigBuilder().
								Type(common.ScaleDistributionSymlog).Log(10).LinearThreshold(t.DuplicateRatioMin))
					}),
				},
				{
					title: "Lag in records",
					description: "Good: near 0, or falling back after a peak. Growing for half an hour means the group cannot keep up. " +
						"Peaks in step with the pruner (switch its annotation on above) mean that pruning slows the consumer.",
					noData: "No lag is exported: is the collector groups up, and has the group committed?", unit: "short",
					runbooks: []string{"ConsumerLagGrowing", "ConsumerLagNotRecoveringAfterRestart"},
					steps:    []step{{t.LagMin, watch}}, width: 8, height: 7,
					queries: []query{{expr: expr(`sum by (%[1]s) (max by (%[1]s, topic, partition) (%[2]s))`, perGroup, sel("consumer_lag")), legend: "{{consumer_group}}"}},
					draw:    lines(),
				},
				{
					title: "Lag in time",
					description: "Age of the oldest record not committed past, from the records' own timestamps. Good: seconds. " +
						"When it nears the topic's retention, events expire before they are handled.",
					noData: "No lag is exported: is the collector groups up, and has the group committed?", unit: "s",
					runbooks: []string{"ConsumerLagGrowing"},
					width:    8, height: 7,
					queries: []query{{expr: expr(`max by (%s) (%s)`, perGroup, sel("consumer_lag_seconds")), legend: "{{consumer_group}}"}},
					draw:    lines(longTime),
				},
				{
					title: "Handled per second",
					description: "Processed and duplicate events. Good: processed follows the producer. " +
						"Processed at 0 with lag above 0 is a stopped consumer; duplicates near processed are a replay.",
					noData: "No consumer exports events_handled_total for the selected groups", unit: "ops",
					runbooks: []string{"ConsumerMetricsAbsent"},
					width:    8, height: 7,
					queries: []query{{expr: expr(`sum by (%s, outcome) (rate(%s[$__rate_interval]))`, perGroup, sel("events_handled_total")), legend: "{{consumer_group}} {{outcome}}"}},
					draw:    lines(),
				},
				{
					title:       "Records a reset would apply twice, by topic",
					description: "Good: 0. A rise tells when markers began to be missed: compare with the pruner's runs and with changes of the topic's retention.",
					noData:      "Not known: the exporter needs both the marker table and the broker for this", unit: "short",
					runbooks: []string{"ProcessedEventsReplayExposed"},
					steps:    []step{{1, violated}}, width: 12, height: 7,
					queries: []query{{expr: expr(`sum by (%[1]s, topic) (max by (%[1]s, topic, partition) (%[2]s))`, perGroup, sel("processed_events_unprotected_records")), legend: "{{consumer_group}} {{topic}}"}},
					draw:    lines(shouldBeZero),
				},
				{
					title: "Losses",
					description: "Gaps in a producer's sequence, and records deleted by the broker before the group committed past them. Good: both 0. " +
						"Expired records mean that the group was away for longer than the topic's retention.",
					noData: "No consumer reports gaps and no lag is exported: is either scraped?", unit: "short",
					runbooks: []string{"EventsLost"},
					steps:    []step{{1, violated}}, width: 12, height: 7,
					queries: []query{
						{expr: expr(`sum by (%s, topic) (increase(%s[$__rate_interval]))`, perGroup, sel("events_lost_total")), legend: "{{consumer_group}} {{topic}} gap"},
						{expr: expr(`sum by (%[1]s, topic) (max by (%[1]s, topic, partition) (%[2]s))`, perGroup, sel("consumer_records_expired")), legend: "{{consumer_group}} {{topic}} expired"},
					},
					draw: lines(shouldBeZero),
				},
			}},
			{"Can this be believed?", []panel{
				{
					title: "Age of each collector's last success, in its own intervals",
					description: "Good: below 2, a poll and a scrape. Above " + num(t.StaleIntervals) + " the exporter withholds the collector's series, and panels above go empty on purpose. " +
						"The exporter's log names the cause once.",
					noData: "No exporter is scraped: is oncewatch running, and in the selected job?", unit: "none",
					runbooks: []string{"ProcessedEventsExporterPollStale", "ProcessedEventsExporterDown", "ProcessedEventsExporterTargetDown"},
					steps:    []step{{t.StaleIntervals, violated}}, width: 12, height: 7,
					queries: []query{{
						// A collector that never succeeded has the timestamp 0: it
						// must show, and not stretch the axis to the year 1970.
						expr: expr(`clamp_max((time() - min by (cluster, collector, instance) (%s)) / on (cluster, collector, instance) max by (cluster, collector, instance) (%s), %s)`,
							sel("oncewatch_collector_last_success_timestamp_seconds"), sel("oncewatch_collector_interval_seconds"), num(4*t.StaleIntervals)),
						legend: "{{collector}} {{instance}}",
					}},
					draw: lines(),
				},
				{
					title: "What could not be read",
					description: "Errors by collector and kind. Good: 0. A denied or unreadable topic, group or table costs only its own series, which are missing above. " +
						"Grant what the log names.",
					noData: "Nothing has failed to be read since the exporter started", unit: "short",
					runbooks: []string{"ProcessedEventsExporterPollFailing"},
					width:    12, height: 7,
					queries: []query{{expr: expr(`sum by (cluster, collector, kind) (increase(%s[$__rate_interval]))`, sel("oncewatch_errors_total")), legend: "{{collector}} {{kind}}"}},
					draw: lines(shouldBeZero, func(b *timeseries.PanelBuilder) {
						b.DrawStyle(common.GraphDrawStyleBars).FillOpacity(50).
							Stacking(common.NewStackingConfigBuilder().Mode(common.StackingModeNormal).Group("A"))
					}),
				},
			}},
		},
	}
}
