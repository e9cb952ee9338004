package matrix

import (
	"time"

	"oncewatch/deploy/demo"
)

// faults are the faults, those of the two documents first. Each is also
// `oncewatch demo --fault=NAME`. The times are those of the rules: their `for`
// and the window they need, on the faster clock, and a few seconds.
var faults = []scenario{
	// The runbook's failure table.
	{name: "own-connection", want: "MarkerEffectDivergence", within: 140 * time.Second}, // minutes must be closed: real ones
	{name: "offset-first", want: "EventsLost", within: 20 * time.Second},
	{name: "short-retention", prepare: evenly, want: "ProcessedEventsRetentionBelowBroker", within: 30 * time.Second,
		also: []string{"ProcessedEventsReplayExposed", "ProcessedEventsMarkersMassDeleted"}},
	{name: "pruner-stopped", want: "ProcessedEventsGrowthOutpacesPruning", within: 130 * time.Second, before: 50 * time.Second},
	{name: "table-locked", want: "ConsumerRetryVolumeHigh", within: 60 * time.Second,
		also: []string{"ConsumerLagGrowing", "ProcessedEventsExporterPollStale"}},
	{name: "id-reuse", want: "ProducerEventIdReuse", within: 40 * time.Second,
		also: []string{"EventsDeadLettered"}},

	// The second document.
	{name: "crash-loop", want: "ConsumerRebalanceLoop", within: 60 * time.Second},
	{name: "email-crash", want: "OutboxStuck", within: 30 * time.Second},
	{name: "poison", want: "EventsDeadLettered", within: 15 * time.Second},
	{name: "transient-failures", want: "ConsumerRetryVolumeHigh", within: 40 * time.Second,
		also: []string{"ConsumerLagGrowing"}},

	// Of the parts.
	{name: "exporter-down", want: "ProcessedEventsExporterDown", within: 20 * time.Second},
	{name: "database-down", want: "ProcessedEventsExporterPollStale", within: 25 * time.Second, alone: true,
		also: []string{"ConsumerRetryVolumeHigh", "ConsumerLagGrowing"}},
	{name: "broker-down", want: "ProcessedEventsExporterPollStale", within: 25 * time.Second, apache: true,
		also: []string{"ProcessedEventsRetentionUnverifiable"}},
	{name: "permission-revoked", want: "ProcessedEventsExporterPollStale", within: 25 * time.Second},
	{name: "topic-config-denied", want: "ProcessedEventsRetentionUnverifiable", within: 40 * time.Second},
	{name: "retention-raised", want: "ProcessedEventsRetentionMisconfigured", within: 30 * time.Second,
		also: []string{"ProcessedEventsRetentionBelowBroker"}},
	{name: "retention-unlimited", want: "ProcessedEventsRetentionMisconfigured", within: 30 * time.Second,
		also: []string{"ProcessedEventsRetentionBelowBroker"}},
	{name: "retention-misconfigured", want: "ProcessedEventsRetentionMisconfigured", within: 25 * time.Second},
	{name: "topic-recreated", want: "EventsLost", within: 30 * time.Second, apache: true},
	{name: "group-reset", want: "ConsumerDuplicateRatioHigh", within: 50 * time.Second},
	{name: "pruner-too-fast", prepare: evenly, want: "ProcessedEventsRetentionRatioLow", within: 30 * time.Second},
	{name: "table-truncated", want: "ProcessedEventsMarkersMassDeleted", within: 15 * time.Second, before: 70 * time.Second,
		also: []string{"ProcessedEventsRetentionBelowBroker", "ProcessedEventsReplayExposed"}},
	{name: "sequence-gap", want: "EventsLost", within: 20 * time.Second},
	{name: "stuck-outbox", want: "OutboxStuck", within: 30 * time.Second},
	{name: "rebalance-loop", want: "ConsumerRebalanceLoop", within: 60 * time.Second, apache: true},
	{name: "slow-handler", want: "ConsumerHandleLatencyBudgetBurn", within: 40 * time.Second},
	{name: "slow-tail", want: "ConsumerHandleLatencyP99High", within: 40 * time.Second},
	{name: "commit-blocked", want: "ConsumerOffsetCommitLagHigh", within: 20 * time.Second,
		also: []string{"ConsumerLagGrowing"}},
	{name: "slow-commits", want: "ConsumerOffsetCommitLagWidening", within: 50 * time.Second},
	{name: "consumer-too-slow", want: "ConsumerLagGrowing", within: 70 * time.Second},
	{name: "partition-stopped", want: "ConsumerLagNotRecoveringAfterRestart", within: 60 * time.Second,
		also: []string{"ConsumerLagGrowing"}},
	{name: "markers-vanish", want: "ProcessedEventsTableEmpty", within: 60 * time.Second,
		also: []string{"MarkerEffectDivergence"}},
	{name: "consumer-unscraped", want: "ConsumerMetricsAbsent", within: 60 * time.Second},
	{name: "records-expired", want: "EventsLost", within: 20 * time.Second},
	{name: "row-limit", want: "ProcessedEventsRowCountWillExceedLimit", within: 130 * time.Second, before: 50 * time.Second},
	{name: "ids-never-match", want: "ConsumerDuplicateRatioTooLow", within: 130 * time.Second},
}

// evenly spreads the past, for a pruner that goes far into it: where its edge
// is dense, a few days are half of the table.
func evenly(s *demo.Stack) { s.History.EdgeEvery, s.History.Every = 0, 30*time.Second }
