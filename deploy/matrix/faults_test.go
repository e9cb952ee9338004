package matrix

import (
	"time"

	"oncewatch/deploy/demo"
)

// faults are the faults, those of the two documents first. Each is also
// `oncewatch demo --fault=NAME`. The times are those of the rules: their `for`
// and the window they need, in minutes.
var faults = []scenario{
	// The runbook's failure table.
	{name: "own-connection", want: "MarkerEffectDivergence", within: 5, real: 130 * time.Second}, // minutes must be closed: real ones
	{name: "offset-first", want: "EventsLost", within: 20},
	{name: "offset-ahead", heals: "the consumer goes back to the offset in its database"},
	{name: "short-retention", prepare: evenly, want: "ProcessedEventsRetentionBelowBroker", within: 30,
		also: []string{"ProcessedEventsReplayExposed", "ProcessedEventsMarkersMassDeleted"}},
	{name: "pruner-stopped", want: "ProcessedEventsGrowthOutpacesPruning", within: 130, before: 50},
	{name: "table-locked", want: "ConsumerRetryVolumeHigh", within: 60,
		also: []string{"ConsumerLagGrowing", "ProcessedEventsExporterPollStale"}},
	{name: "unbounded-delete", before: 70, heals: "in PostgreSQL a DELETE blocks no insert"},
	{name: "id-reuse", want: "ProducerEventIdReuse", within: 40,
		also: []string{"EventsDeadLettered"}},

	// The second document.
	{name: "crash-once", heals: "the markers absorb what is delivered again"},
	{name: "crash-loop", prepare: quickly, want: "ConsumerRebalanceLoop", within: 60},
	{name: "email-crash", prepare: fewer, want: "OutboxStuck", within: 30},
	{name: "email-twice", prepare: fewer, unseen: "the second sending happens outside of everything that is watched; a receiver that honours the Idempotency-Key makes it harmless"},
	{name: "poison", want: "EventsDeadLettered", within: 15},
	{name: "transient-failures", want: "ConsumerRetryVolumeHigh", within: 40,
		also: []string{"ConsumerLagGrowing"}},

	// Of the parts.
	{name: "exporter-down", want: "ProcessedEventsExporterDown", within: 20},
	{name: "database-down", want: "ProcessedEventsExporterPollStale", within: 25, alone: true,
		also: []string{"ConsumerRetryVolumeHigh", "ConsumerLagGrowing"}},
	{name: "broker-down", want: "ProcessedEventsExporterPollStale", within: 25, apache: true},
	{name: "permission-revoked", want: "ProcessedEventsExporterPollStale", within: 25},
	{name: "topic-config-denied", want: "ProcessedEventsRetentionUnverifiable", within: 40},
	{name: "retention-raised", want: "ProcessedEventsRetentionMisconfigured", within: 30,
		also: []string{"ProcessedEventsRetentionBelowBroker"}},
	{name: "retention-unlimited", want: "ProcessedEventsRetentionMisconfigured", within: 30,
		also: []string{"ProcessedEventsRetentionBelowBroker"}},
	{name: "retention-misconfigured", want: "ProcessedEventsRetentionMisconfigured", within: 25},
	{name: "topic-recreated", apache: true, heals: "the consumer ends, is started again and begins the new topic at its start",
		// It takes ten real seconds to believe that the topic is gone: five
		// minutes on the clock of this rule.
		also: []string{"ConsumerOffsetCommitLagHigh", "ConsumerOffsetCommitLagWidening"}},
	{name: "topic-recreated-behind", apache: true,
		unseen: "the unread events, the group's offsets and the producer's numbering end together: nothing that is left knows of them"},
	{name: "group-reset", want: "ConsumerDuplicateRatioHigh", within: 50},
	{name: "pruner-too-fast", prepare: evenly, want: "ProcessedEventsRetentionRatioLow", within: 30},
	{name: "table-truncated", want: "ProcessedEventsMarkersMassDeleted", within: 15, before: 70,
		also: []string{"ProcessedEventsRetentionBelowBroker", "ProcessedEventsReplayExposed", "MarkerEffectDivergence"}},
	{name: "sequence-gap", want: "EventsLost", within: 20},
	{name: "outbox-refused", prepare: fewer, want: "OutboxStuck", within: 30},
	{name: "stuck-outbox", prepare: fewer, want: "OutboxStuck", within: 30},
	{name: "rebalance-loop", prepare: quickly, want: "ConsumerRebalanceLoop", within: 60, apache: true, second: true},
	{name: "slow-handler", want: "ConsumerHandleLatencyBudgetBurn", within: 40,
		also: []string{"ConsumerHandleLatencyP99High"}},
	{name: "slow-tail", want: "ConsumerHandleLatencyP99High", within: 40},
	{name: "commit-blocked", want: "ConsumerOffsetCommitLagHigh", within: 20,
		also: []string{"ConsumerLagGrowing"}},
	{name: "slow-commits", want: "ConsumerOffsetCommitLagWidening", within: 50},
	{name: "consumer-too-slow", want: "ConsumerLagGrowing", within: 70,
		also: []string{"ConsumerLagNotRecoveringAfterRestart"}},
	{name: "partition-stopped", want: "ConsumerLagNotRecoveringAfterRestart", within: 60,
		also: []string{"ConsumerLagGrowing"}},
	{name: "markers-vanish", want: "ProcessedEventsTableEmpty", within: 60,
		also: []string{"MarkerEffectDivergence"}},
	{name: "consumer-unscraped", want: "ConsumerMetricsAbsent", within: 60},
	{name: "records-expired", want: "EventsLost", within: 20},
	{name: "row-limit", want: "ProcessedEventsRowCountWillExceedLimit", within: 130, before: 50},
	{name: "ids-never-match", want: "ConsumerDuplicateRatioTooLow", within: 110, before: 1},
}

// evenly spreads the past, for a pruner that goes far into it: where its edge
// is dense, a few days are half of the table.
func evenly(s *demo.Stack) { s.History.EdgeEvery, s.History.Every = 0, 30*time.Second }

// quickly lets the group notice a dead member in a second and a half: six of
// them must die within the half hour of the rule, which is half a minute here.
func quickly(s *demo.Stack) {
	s.Consumer.Stream.SessionTimeout = 1500 * time.Millisecond
	s.Consumer.Stream.HeartbeatInterval = 300 * time.Millisecond
	s.Consumer.Inbox.IdleTimeout = 700 * time.Millisecond
}

// fewer events, where each is a delivery too.
func fewer(s *demo.Stack) { s.Producer.Rate = 10 }
