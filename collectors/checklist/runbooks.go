package checklist

import (
	"fmt"
	"hash/fnv"
)

// runbooks are the alerts' pages that belong to the lines. Where a verdict has a
// page of its own, it stands behind the rule's name.
var runbooks = map[string]string{
	"markers":                  "ProcessedEventsExporterPollFailing",
	"duplicate-ratio":          "ConsumerDuplicateRatioHigh",
	"duplicate-ratio/violated": "ProducerEventIdReuse",
	"row-count":                "ProcessedEventsGrowthOutpacesPruning",
	"retention-ratio":          "ProcessedEventsRetentionBelowBroker",
	"retention-ratio/warning":  "ProcessedEventsRetentionRatioLow",
	"retention-ratio/unknown":  "ProcessedEventsRetentionUnverifiable",
	"handle-latency":           "ConsumerHandleLatencyP99High",
	"commit-lag":               "ConsumerOffsetCommitLagHigh",
	"commit-lag/warning":       "ConsumerOffsetCommitLagWidening",
	"replay-exposure":          "ProcessedEventsReplayExposed",
	"replay-exposure/warning":  "ProcessedEventsReplayUnverified",
	"replay-exposure/unknown":  "ProcessedEventsReplayUnverified",
	"retention-margin":         "ProcessedEventsRetentionMisconfigured",
	"effect-divergence":        "MarkerEffectDivergence",
	"committed-offsets":        "ConsumerOffsetsMissing",
	"records-lost":             "EventsLost",
	"dead-letters":             "EventsDeadLettered",
	"lag":                      "ConsumerLagGrowing",
	"open-transaction":         "ConsumerStalled",
	"lag/violated":             "ConsumerRecordsExpiring",
}

// Runbook is the name of the alert whose page tells what to do about the line;
// empty where there is none, or nothing to do.
func (l Line) Runbook() string {
	if l.Verdict == OK || l.Outside || l.Unasked != "" {
		return ""
	}
	if page, ok := runbooks[l.Rule+"/"+l.Verdict.String()]; ok {
		return page
	}
	return runbooks[l.Rule]
}

// ID tells a line from the others and stays the same, for links.
func (l Line) ID() string {
	h := fnv.New32a()
	for _, part := range []string{l.Database, l.Group, l.Topic} {
		_, _ = h.Write([]byte(part + "\x00"))
	}
	return fmt.Sprintf("%s-%08x", l.Rule, h.Sum32())
}
