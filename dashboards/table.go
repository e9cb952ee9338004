package dashboards

import (
	"time"

	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"

	"oncewatch/alerts"
)

// holding answers: will the table hold?
func holding(t alerts.Thresholds) page {
	var (
		perTable = "cluster, database"
		rows     = expr(`sum by (cluster, database, consumer_group) (max by (cluster, database, consumer_group, topic) (%s))`, sel("processed_events_row_count"))
		// The difference over one prune cycle, not a fitted line: the count of a
		// table that is pruned once a day is a saw, whose slope depends on where
		// one cuts it. Counts are exact, so that no counter needs to be read.
		grown = expr(`(%s - %s)`, rows, expr(`sum by (cluster, database, consumer_group) (max by (cluster, database, consumer_group, topic) (%s offset %s))`,
			sel("processed_events_row_count"), t.PruneCycle))
		cycles   = float64(t.LimitHorizon) / float64(t.PruneCycle)
		forecast = expr(`clamp_min(%s + %s * %s, 0)`, rows, num(cycles), grown)
		limit    = expr(`max by (cluster, database, consumer_group) (%s)`, sel("processed_events_row_limit"))
		live     = expr(`sum by (%s) (%s)`, perTable, rows)
		dead     = expr(`max by (%s) (%s)`, perTable, sel("processed_events_dead_rows"))
		bytes    = expr(`(max by (%[1]s) (%[2]s) + sum by (%[1]s) (max by (%[1]s, index) (%[3]s)))`, perTable, sel("processed_events_table_bytes"), sel("processed_events_index_bytes"))
		days     = num(time.Duration(t.LimitHorizon).Hours() / 24)
		noTable  = "the table's health is not exported; is the collector table up?"
		noLedger = "the ledger is not exported; is the collector markers up?"
		noCount  = "counts are withheld until the ledger is complete (see the last row), or no exporter is scraped"
		noDay    = "there are no counts of " + t.PruneCycle.String() + " before"
		noPruner = "no pruner is scraped in the selected job; reference-consumer prune exports this"
	)
	return page{
		uid:         tableUID,
		title:       "oncewatch / Will the table hold?",
		description: "Growth, space, vacuum and pruning of the marker table.",
		from:        "now-7d",
		worst:       expr(`query_result(topk(%d, max by (%s) (%s)))`, shown, perGroup, rows),
		rows: []row{
			{"Forecast", []panel{
				{
					title: "Markers", description: "Rows of the selected groups. Good: steady once the table is as old as its retention.",
					noData: noCount, unit: "short",
					base: unknown, width: 6, height: 4,
					queries: []query{{expr: expr(`sum(%s)`, rows), legend: "rows"}}, draw: numbers(),
				},
				{
					title: "Share of the row limit in " + days + " days",
					description: "At the pace of the last day, of the group nearest to its limit. Good: below 100 %. Shown up to 200 %. " +
						"Otherwise prune more, or raise the limit with a plan for disk and vacuum.",
					noData: "no row limit is configured, or there are no counts of a day before", unit: "percentunit",
					runbooks: []string{"ProcessedEventsRowCountWillExceedLimit"},
					steps:    []step{{0.8, warning}, {1, violated}}, width: 6, height: 4,
					queries: []query{{expr: expr(`clamp_max(max((%s) / %s), 2)`, forecast, limit), legend: "share"}}, draw: numbers(),
				},
				{
					title: "Dead rows", description: "Share of rows that vacuum has yet to remove. Good: below 20 %, as autovacuum starts there. Otherwise see the row on vacuum.",
					noData: noTable, unit: "percentunit",
					runbooks: []string{"ProcessedEventsGrowthOutpacesPruning"},
					steps:    []step{{0.2, warning}, {0.5, violated}}, width: 6, height: 4,
					queries: []query{{expr: expr(`max(%s / (%s + %s > 0))`, dead, dead, live), legend: "share"}}, draw: numbers(),
				},
				{
					title: "Oldest snapshot held", description: "Age of the xmin horizon: vacuum removes nothing younger. Good: minutes. Hours: find the transaction, replication slot or prepared transaction that holds it.",
					noData: noTable, unit: "dtdhms",
					runbooks: []string{"ConsumerHandleLatencyP99High"},
					steps:    []step{{600, warning}, {3600, violated}}, width: 6, height: 4,
					queries: []query{{expr: expr(`max(%s)`, sel("processed_events_xmin_horizon_age_seconds")), legend: "age"}}, draw: numbers(),
				},
				{
					title: "Rows, and in " + days + " days",
					description: "Of the ten largest groups: the count, what it comes to in " + days + " days at the pace of the last day, and the limit. Good: forecast and count meet, both below the limit. " +
						"Forecast above count past full retention: pruning does not keep up.",
					noData: noCount, unit: "short",
					runbooks: []string{"ProcessedEventsRowCountWillExceedLimit", "ProcessedEventsGrowthOutpacesPruning"},
					width:    12, height: 8,
					queries: []query{
						{expr: ofWorst(rows), legend: "{{consumer_group}}"},
						{expr: ofWorst(forecast), legend: "{{consumer_group}} in " + days + " days"},
						{expr: ofWorst(limit), legend: "{{consumer_group}} limit"},
					},
					draw: lines(),
				},
				{
					title:       "Growth over " + t.PruneCycle.String(),
					description: "How many rows a group gained or lost in the last " + t.PruneCycle.String() + ". Good: around 0 once the table is as old as its retention, whatever the pruner's schedule.",
					noData:      noDay, unit: "short",
					runbooks: []string{"ProcessedEventsGrowthOutpacesPruning"},
					width:    12, height: 8,
					queries: []query{{expr: ofWorst(grown), legend: "{{consumer_group}}"}},
					draw:    lines(wholeNumbers),
				},
			}},
			{"Space", []panel{
				{
					title: "Table and indexes", description: "Bytes on disk. Good: flat once the table is as old as its retention. Growing with a steady row count is bloat.",
					noData: noTable, unit: "bytes",
					runbooks: []string{"ProcessedEventsGrowthOutpacesPruning"},
					width:    8, height: 7,
					queries: []query{
						{expr: expr(`max by (%s) (%s)`, perTable, sel("processed_events_table_bytes")), legend: "{{database}} table"},
						{expr: expr(`max by (%s, index) (%s)`, perTable, sel("processed_events_index_bytes")), legend: "{{database}} {{index}}"},
					},
					draw: lines(func(b *timeseries.PanelBuilder) {
						b.FillOpacity(30).Stacking(common.NewStackingConfigBuilder().Mode(common.StackingModeNormal).Group("A"))
					}),
				},
				{
					title: "Bytes per live row", description: "Table and indexes together. Good: flat. A rise is bloat; compare with its own lowest value rather than with another table.",
					noData: noTable, unit: "bytes",
					runbooks: []string{"ConsumerHandleLatencyP99High"},
					width:    8, height: 7,
					queries: []query{{expr: expr(`%s / on (%s) (%s > 0)`, bytes, perTable, live), legend: "{{database}}"}},
					draw:    lines(),
				},
				{
					title: "Index bloat", description: "Bytes per row of each index against its own lowest value since the exporter started. Good: below 2. Above, and with slow handling: REINDEX CONCURRENTLY, after locks and checkpoints were ruled out.",
					noData: noTable, unit: "none",
					runbooks: []string{"ConsumerHandleLatencyP99High"},
					steps:    []step{{2, warning}}, width: 8, height: 7,
					queries: []query{{expr: expr(`max by (%s, index) (%s)`, perTable, sel("processed_events_index_bloat_ratio")), legend: "{{database}} {{index}}"}},
					draw:    lines(),
				},
			}},
			{"Vacuum", []panel{
				{
					title: "Dead rows, counted", description: "Good: a saw that falls after each vacuum. Only rising: vacuum does not run, or a snapshot holds it back (right).",
					noData: noTable, unit: "short",
					runbooks: []string{"ProcessedEventsGrowthOutpacesPruning"},
					width:    8, height: 7,
					queries: []query{{expr: dead, legend: "{{database}}"}}, draw: lines(),
				},
				{
					title: "Time since the last vacuum", description: "Good: less than a day on a table that is pruned. Otherwise lower autovacuum_vacuum_scale_factor for this table: the default waits for 20 % of it.",
					noData: "the table's health is not exported, or it has never been vacuumed", unit: hours,
					runbooks: []string{"ProcessedEventsGrowthOutpacesPruning"},
					width:    8, height: 7,
					queries: []query{{expr: expr(`(time() - max by (%s) (%s > 0)) / 3600`, perTable, sel("processed_events_last_vacuum_timestamp_seconds")), legend: "{{database}}"}},
					draw:    lines(),
				},
				{
					title: "What holds vacuum back", description: "For how long each kind of holder has kept vacuum from removing rows: a session's open transaction, a prepared transaction, a replication slot. Good: minutes. A line that rises steadily is one forgotten holder: end it, or dead rows stay.",
					noData: noTable, unit: minutes,
					runbooks: []string{"ConsumerHandleLatencyP99High"},
					steps:    []step{{10, warning}, {60, violated}}, width: 8, height: 7,
					queries: []query{{expr: expr(`max by (%s, holder) (%s) / 60`, perTable, sel("processed_events_xmin_horizon_age_seconds")), legend: "{{database}} {{holder}}"}},
					draw:    lines(),
				},
			}},
			{"Pruner", []panel{
				{
					title: "Markers pruned per second", description: "Good: over a day as many as are inserted. A pruner that stops is not urgent; one that deletes everything is.",
					noData: noPruner, unit: "rowsps",
					runbooks: []string{"ProcessedEventsGrowthOutpacesPruning"},
					width:    8, height: 7,
					queries: []query{{expr: expr(`sum by (cluster, instance) (rate(%s[$__rate_interval]))`, sel("marker_prune_deleted_total")), legend: "{{instance}}"}},
					draw:    lines(),
				},
				{
					title: "Duration of a prune batch", description: "95th percentile. Good: below 100 ms for 10,000 rows. Rising from batch to batch: a held snapshot makes each one walk over dead entries.",
					noData: noPruner, unit: "s",
					runbooks: []string{"ProcessedEventsGrowthOutpacesPruning"},
					width:    8, height: 7,
					queries: []query{{expr: expr(`histogram_quantile(0.95, sum by (cluster, instance, le) (rate(%s[$__rate_interval])))`, sel("marker_prune_batch_duration_seconds_bucket")), legend: "{{instance}}"}},
					draw:    lines(),
				},
				{
					title: "Time since the pruner finished", description: "Good: below twice its interval. Otherwise look whether it runs at all, and whether another one holds its advisory lock.",
					noData: noPruner, unit: minutes,
					runbooks: []string{"ProcessedEventsGrowthOutpacesPruning"},
					width:    8, height: 7,
					queries: []query{{expr: expr(`(time() - max by (cluster, instance) (%s > 0)) / 60`, sel("marker_prune_last_success_timestamp_seconds")), legend: "{{instance}}"}},
					draw:    lines(),
				},
			}},
			{"Can the counts be believed?", []panel{
				{
					title: "Ledger", description: "Ready is 1 once every row has been counted. A reason at 1 says why counts may be off. Good: ready 1, every reason 0. Grant the role or add the index that the reason names.",
					noData: noLedger, unit: "none",
					runbooks: []string{"ProcessedEventsExporterPollFailing"},
					width:    8, height: 7,
					queries: []query{
						{expr: expr(`min by (%s) (%s)`, perTable, sel("oncewatch_ledger_ready")), legend: "{{database}} ready"},
						{expr: expr(`max by (%s, reason) (%s)`, perTable, sel("oncewatch_ledger_inexact")), legend: "{{database}} inexact: {{reason}}"},
					},
					draw: lines(shouldBeZero),
				},
				{
					title: "Rows the scrub corrected", description: "Good: 0. Otherwise rows changed in a way the ledger cannot see at once: deletions in the middle of the table, or very late commits.",
					noData: noLedger, unit: "short",
					runbooks: []string{"ProcessedEventsExporterPollFailing"},
					width:    8, height: 7,
					queries: []query{{expr: replicated(perTable, expr(`increase(%s[$__rate_interval])`, sel("oncewatch_ledger_corrections_total"))), legend: "{{database}}"}},
					draw:    lines(shouldBeZero),
				},
				{
					title: "Since when every bucket has been verified", description: "Good: hours at most. Growing without end: the scrub's budget is too small for this table.",
					noData: noLedger, unit: hours,
					runbooks: []string{"ProcessedEventsExporterPollStale"},
					width:    8, height: 7,
					queries: []query{{expr: expr(`max by (%s) (%s) / 3600`, perTable, sel("oncewatch_ledger_scrub_age_seconds")), legend: "{{database}}"}},
					draw:    lines(),
				},
			}},
		},
	}
}
