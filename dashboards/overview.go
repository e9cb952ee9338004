package dashboards

import (
	"fmt"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"

	"oncewatch/alerts"
)

// overview answers in one look, worst first: is every event applied once, does
// each group keep up, could it be replayed, and can this be believed?
func overview(t alerts.Thresholds, pageURL, runbooks string) page {
	const (
		noConsumer = "no consumer of these groups exports it, or none is scraped"
		noBroker   = "the exporter has read no commits of these groups, or is not scraped"
		noMarkers  = "the exporter needs both the marker table and the broker for this"
	)
	return page{
		uid:         overviewUID,
		title:       "oncewatch / Is every event applied once?",
		description: "Four questions about every consumer group, worst first, and the evidence for the answers.",
		from:        "now-6h",
		worst:       worstGroups(),
		rows: []row{
			{"In one look", []panel{
				groupCounts(),
				firingCounts(),
				{
					title: "Stale collectors",
					description: fmt.Sprintf("Collectors without a success for longer than %s of their own intervals. Good: 0. Above, the exporter withholds their series, and answers turn unknown; its log names the cause.",
						num(t.StaleIntervals)),
					noData: "no exporter is scraped, so that nothing is watched", unit: "none",
					runbooks: []string{"ProcessedEventsExporterPollStale", "ProcessedEventsExporterDown", "ProcessedEventsExporterTargetDown"},
					steps:    []step{{1, violated}}, width: 5, height: 4,
					queries: []query{{
						expr:   expr(`count(%s) or 0 * count(%s)`, stale(t), sel("oncewatch_collector_last_success_timestamp_seconds")),
						legend: "collectors",
					}},
					draw: numbers(),
				},
				answers(t, "Consumer groups, the worst first", pageURL, 12, ofWorst),
				firingAlerts(runbooks, 6),
			}},
			{"Is every event applied once?", []panel{
				{
					title: "Lost",
					description: "Gaps in a producer's sequence, and records deleted by the broker before the group committed past them (less those that may have been no events). Good: both 0. " +
						"Otherwise find the partition on *Why not?*, and restore the events from their source.",
					noData: noBroker, unit: "short",
					runbooks: []string{"EventsLost"},
					steps:    []step{{1, violated}}, width: 8, height: 8,
					queries: []query{
						{expr: ofWorst(expr(`sum by (%s) (increase(%s[$__rate_interval]))`, perGroup, sel("events_lost_total"))), legend: "{{consumer_group}} gap"},
						{expr: ofWorst(expr(`sum by (%[1]s) (%[2]s - (%[3]s or 0 * %[2]s))`, perGroup, byPartition("consumer_records_expired", ""), byPartition("consumer_records_expired_unverified", ""))), legend: "{{consumer_group}} expired"},
					},
					draw: lines(shouldBeZero),
				},
				{
					title: "Markers and effects that diverge",
					description: "Rows of a closed window where marker and effect were not written by one transaction. Good: 0. " +
						"Otherwise a handler writes on a connection of its own, and a crash between the two loses or repeats an effect.",
					noData: "no effect table is configured for these groups, so marker and effect are not compared, or the exporter is not scraped", unit: "short",
					runbooks: []string{"MarkerEffectDivergence"},
					steps:    []step{{1, violated}}, width: 8, height: 8,
					queries: []query{{expr: ofWorst(expr(`sum by (%[1]s) (max by (%[1]s, database, kind) (%[2]s))`, perGroup, sel("processed_events_divergent_rows"))), legend: "{{consumer_group}}"}},
					draw:    lines(shouldBeZero),
				},
				{
					title: "Duplicates as a share of what is handled",
					description: "Good: between " + num(100*t.DuplicateRatioMin) + " % and " + num(100*t.DuplicateRatioMax) + " % (the dashed lines), which redeliveries after restarts and rebalances explain. " +
						"Above: a rebalance loop, or a producer that reuses ids; *Why not?* tells them apart. Far below on a busy group: is deduplication reached at all?",
					noData: noConsumer, unit: "percentunit",
					runbooks: []string{"ConsumerDuplicateRatioHigh", "ConsumerDuplicateRatioTooLow"},
					base:     "blue", steps: []step{{t.DuplicateRatioMin, holds}, {t.DuplicateRatioMax, warning}},
					width: 8, height: 8,
					queries: []query{{
						expr: ofWorst(expr(`sum by (%[1]s) (rate(%[2]s[$__rate_interval])) / sum by (%[1]s) (rate(%[3]s[$__rate_interval]))`,
							perGroup, sel("events_handled_total", `outcome="duplicate"`), sel("events_handled_total"))),
						legend: "{{consumer_group}}",
					}},
					// The band spans a factor of 50: on a linear axis its lower
					// edge lies on the axis. Symlog can also draw 0; it knows no
					// soft limit, and would end below the band.
					draw: lines(func(b *timeseries.PanelBuilder) {
						b.Min(0).Max(1).Decimals(2).ScaleDistribution(common.NewScaleDistributionConfigBuilder().
							Type(common.ScaleDistributionSymlog).Log(10).LinearThreshold(t.DuplicateRatioMin))
					}),
				},
			}},
			{"Does each group keep up?", []panel{
				{
					title: "Retention left for what waits",
					description: fmt.Sprintf("Share of the topic's retention that is left for the oldest record not yet handled. Good: near 100 %%. Below %s %% act; at 0 the broker deletes it unread.",
						num(100*(1-t.ExpiringSoonShare))),
					noData: noBroker, unit: "percentunit",
					runbooks: []string{"ConsumerRecordsExpiringSoon", "ConsumerRecordsExpiring"},
					base:     violated, steps: []step{{1 - t.ExpiringShare, warning}, {1 - t.ExpiringSoonShare, holds}},
					width: 8, height: 8,
					queries: []query{{expr: ofWorst(expr(`min by (%s) (clamp_min(1 - %s, 0))`, perGroup, usedRetention())), legend: "{{consumer_group}}"}},
					draw:    lines(func(b *timeseries.PanelBuilder) { b.Min(0).Max(1) }),
				},
				{
					title: "Lag in records",
					description: "Good: near 0, or falling back after a peak. Growing for half an hour means the group cannot keep up. " +
						"Peaks in step with the pruner (switch its annotation on above) mean that pruning slows the consumer.",
					noData: noBroker, unit: "short",
					runbooks: []string{"ConsumerLagGrowing", "ConsumerLagNotRecoveringAfterRestart"},
					steps:    []step{{t.LagMin, warning}}, width: 8, height: 8,
					queries: []query{{expr: ofWorst(expr(`sum by (%s) (%s)`, perGroup, byPartition("consumer_lag", ""))), legend: "{{consumer_group}}"}},
					draw:    lines(wholeNumbers),
				},
				{
					title: "Progress",
					description: "Records that each group passes a second, by its committed offsets. Good: follows the producer. " +
						"0 with lag above 0: the group stands still, whatever its own metrics say.",
					noData: noBroker, unit: "recps",
					runbooks: []string{"ConsumerStalled"},
					width:    8, height: 8,
					queries: []query{{
						expr: ofWorst(expr(`sum by (%s) (clamp_min(max by (%s) (deriv(%s[$__rate_interval])), 0))`,
							perGroup, perPartition, sel("consumer_committed_offset"))),
						legend: "{{consumer_group}}",
					}},
					draw: lines(),
				},
				{
					title: "Starts in " + seconds(2*duration(t.StalledWindow)),
					description: fmt.Sprintf("How often consumers of the group were started, by their start times: counters begin anew with each start and do not tell. Good: 0, or one for each member after a deployment. Above %s for one member: it crashes in a loop.",
						num(t.StalledRestarts)),
					noData: noConsumer, unit: "short",
					runbooks: []string{"ConsumerStalled", "ConsumerRebalanceLoop"},
					steps:    []step{{t.StalledRestarts + 1, violated}}, width: 12, height: 8,
					queries: []query{{expr: ofWorst(starts(t)), legend: "{{consumer_group}}"}},
					draw:    lines(shouldBeZero),
				},
				{
					title: "Time since the last start",
					description: "Of the group's youngest consumer. Good: rising. A line that falls back to 0 again and again is a crash loop; " +
						"one that stays at 0 crashes faster than it is scraped.",
					noData: noConsumer, unit: hours,
					runbooks: []string{"ConsumerRebalanceLoop"},
					width:    12, height: 8,
					queries: []query{{expr: ofWorst(expr(`clamp_min(time() - max by (%s) (%s), 0) / 3600`, perGroup, sel("consumer_start_time_seconds"))), legend: "{{consumer_group}}"}},
					draw:    lines(),
				},
			}},
			{"Could each group be replayed?", []panel{
				{
					title: "Marker age ÷ topic retention",
					description: "Good: above " + num(t.RetentionRatioWarning) + " and flat, or rising steadily while a young table grows old. " +
						"A fall means that markers were deleted: by a pruner (then its retention is too short) or by hand. Above 3 the line is drawn at 3; a topic that is kept for ever is at 0.",
					noData: "no marker age or no topic retention is exported", unit: "none",
					runbooks: []string{"ProcessedEventsRetentionRatioLow", "ProcessedEventsRetentionUnverifiable"},
					base:     violated, steps: []step{{t.RetentionRatioCritical, warning}, {t.RetentionRatioWarning, holds}},
					width: 8, height: 8,
					queries: []query{{expr: ofWorst(expr(`clamp_max(min by (%s) (%s), 3)`, perGroup, againstRetention("processed_events_oldest_age_seconds"))), legend: "{{consumer_group}}"}},
					draw: lines(func(b *timeseries.PanelBuilder) {
						b.Min(0).AxisSoftMax(1.1 * t.RetentionRatioWarning).Decimals(2)
					}),
				},
				{
					title: "Records that a reset would apply twice",
					description: "A reset to the earliest offset applies at least so many events twice, and at most so many: the truth lies between the two where nobody has verified all. Good: both 0. " +
						"Otherwise do not reset the group; oncewatch replay --verify tells the rest.",
					noData: noMarkers, unit: "short",
					runbooks: []string{"ProcessedEventsReplayExposed", "ProcessedEventsReplayUnverified"},
					steps:    []step{{1, violated}}, width: 8, height: 8,
					queries: []query{
						{expr: ofWorst(unprotected(perGroup)), legend: "{{consumer_group}} at least"},
						{expr: ofWorst(expr(`(%s > 0) + %s`, unverified(perGroup), unprotected(perGroup))), legend: "{{consumer_group}} at most"},
					},
					draw: lines(shouldBeZero),
				},
				{
					title: "How far back a reset is safe",
					description: "How far back in time a reset applies nothing twice, the least of the group's partitions. Good: as long as the topic keeps records. " +
						"A fall tells when markers began to be missed.",
					noData: noMarkers, unit: hours,
					runbooks: []string{"ProcessedEventsReplayExposed"},
					width:    8, height: 8,
					queries: []query{{expr: ofWorst(expr(`min by (%s) (%s) / 3600`, perGroup, sel("processed_events_safe_rewind_seconds"))), legend: "{{consumer_group}}"}},
					draw:    lines(),
				},
			}},
			{"Can this be believed?", []panel{
				{
					title: "Age of each collector's last success, in its own intervals",
					description: "As it was when it was scraped. Good: below 2. Above " + num(t.StaleIntervals) + " the exporter withholds the collector's series, and panels above go empty on purpose. " +
						"The exporter's log names the cause once. Drawn up to " + num(4*t.StaleIntervals) + ", where one that has never succeeded is.",
					noData: "no exporter is scraped; is oncewatch running, and in the selected job?", unit: "none",
					runbooks: []string{"ProcessedEventsExporterPollStale", "ProcessedEventsExporterDown", "ProcessedEventsExporterTargetDown"},
					steps:    []step{{t.StaleIntervals, violated}}, width: 12, height: 8,
					queries: []query{{
						// A collector that never succeeded has the timestamp 0: it
						// must show, and not stretch the axis to the year 1970.
						expr: expr(`clamp_min(clamp_max(max by (cluster, collector, instance) (timestamp(%[1]s) - %[1]s) / on (cluster, collector, instance) max by (cluster, collector, instance) (%[2]s), %[3]s), 0)`,
							sel("oncewatch_collector_last_success_timestamp_seconds"), sel("oncewatch_collector_interval_seconds"), num(4*t.StaleIntervals)),
						legend: "{{collector}} {{instance}}",
					}},
					draw: lines(),
				},
				{
					title: "What could not be read",
					description: "Errors by collector and kind. Good: 0. A denied or unreadable topic, group or table costs only its own series, which are missing above. " +
						"Grant what the log names.",
					noData: "no error has been counted, and none would be by an exporter that is not scraped; see the panel on the left", unit: "short",
					runbooks: []string{"ProcessedEventsExporterPollFailing"},
					width:    12, height: 8,
					queries: []query{{expr: expr(`sum by (cluster, collector, kind) (increase(%s[$__rate_interval]))`, sel("oncewatch_errors_total")), legend: "{{collector}} {{kind}}"}},
					draw:    lines(shouldBeZero, bars, func(b *timeseries.PanelBuilder) { b.FillOpacity(50) }),
				},
			}},
		},
	}
}

// groupCounts says how many groups there are of each verdict, and how many of
// them the table has no room for.
func groupCounts() panel {
	p := panel{
		title: "Consumer groups by the gravest that is seen of them",
		description: fmt.Sprintf("Of all groups, by alerts that fire and by records and rows that are at fault; the table below asks the %d worst of them everything. "+
			"Good: nothing seen of any, which is no proof that all is well. Without the alert rules, which count the records, every group is unknown.", shown),
		noData: "no consumer group has been seen: is the exporter scraped?", unit: "none",
		runbooks: []string{"ConsumerMetricsAbsent"},
		base:     unknown, width: 12, height: 4,
		draw: numbers(
			column{words[isViolated].text, countCell(violated)}, column{words[isWarning].text, countCell(warning)},
			column{words[isUnknown].text, countCell(unknown)},
		),
	}
	worse := atFault()
	sets := [...]string{
		isHolding:  without() + " == 0",
		isUnknown:  expr(`(%s or %s == %s)`, worse[isUnknown], without(), num(weight(isUnknown))),
		isWarning:  worse[isWarning],
		isViolated: worse[isViolated],
	}
	for v := isViolated; v >= isHolding; v-- {
		name, e := words[v].text, sets[v]
		if v == isHolding {
			name = "nothing seen"
		}
		if v < isViolated {
			e = expr(`%s unless on (%s) (%s)`, e, perGroup, strings.Join(worse[v+1:], " or "))
		}
		p.queries = append(p.queries, query{expr: expr(`count(%s) or 0 * count(%s)`, e, groups()), legend: name})
	}
	p.queries = append(p.queries, query{expr: expr(`clamp_min(count(%s) - %d, 0)`, groups(), shown), legend: "not listed"})
	return p
}

// firingCounts is 0 only where it is known that the rules are evaluated.
func firingCounts() panel {
	p := panel{
		title: "How many alerts fire",
		description: "By severity. Good: 0. It is 0 only where the alert rules are seen to be evaluated; without them nobody is told of anything. " +
			"Load what oncewatch rules writes.",
		noData: "the alert rules are not loaded, or nothing is scraped", unit: "none",
		runbooks: []string{"ProcessedEventsExporterDown"},
		base:     unknown, width: 7, height: 4,
		draw: numbers(column{"critical", countCell(violated)}, column{"warning", countCell(warning)}, column{"info", countCell("blue")}),
	}
	for _, severity := range []string{"critical", "warning", "info"} {
		p.queries = append(p.queries, query{
			expr: expr(`count(ALERTS{alertstate="firing",severity=%q,alertname=~%q,consumer_group=~"$consumer_group|"}) or 0 * count(%s)`,
				severity, ours, rulesProof),
			legend: severity,
		})
	}
	return p
}

// rulesProof is a series that the alert rules record whenever they are evaluated
// and an exporter has ever been seen.
const rulesProof = "cluster:oncewatch_build_info:last_seen"
