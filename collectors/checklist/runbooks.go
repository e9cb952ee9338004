package checklist

import (
	"fmt"
	"hash/fnv"
)

// runbooks are the alerts' pages that belong to the lines.
var runbooks = map[string]string{
	"markers":           "ProcessedEventsExporterPollFailing",
	"duplicate-ratio":   "ConsumerDuplicateRatioHigh",
	"row-count":         "ProcessedEventsGrowthOutpacesPruning",
	"retention-ratio":   "ProcessedEventsRetentionBelowBroker",
	"handle-latency":    "ConsumerHandleLatencyP99High",
	"commit-lag":        "ConsumerOffsetCommitLagHigh",
	"replay-exposure":   "ProcessedEventsReplayExposed",
	"retention-margin":  "ProcessedEventsRetentionMisconfigured",
	"effect-divergence": "MarkerEffectDivergence",
	"records-lost":      "EventsLost",
	"dead-letters":      "EventsDeadLettered",
	"lag":               "ConsumerLagGrowing",
}

// Runbook is the name of the alert whose page tells what to do about the line;
// empty where there is none, or nothing to do.
func (l Line) Runbook() string {
	switch {
	case l.Verdict == OK || l.Outside || l.Unasked != "":
		return ""
	case l.Rule == "duplicate-ratio" && l.Verdict == Violated:
		return "ProducerEventIdReuse"
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
