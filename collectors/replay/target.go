package replay

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"oncewatch/collectors/config"
	"oncewatch/collectors/kafka"
)

// Target is where a group would be reset to.
type Target struct {
	text   string
	at     time.Time // set: the first record at or after it
	offset int64     // else: this offset, or the earliest where it is negative
}

// ParseTarget reads --to: earliest, a time as in RFC 3339, how long ago as in
// -36h or -2d, or offset:N.
func ParseTarget(text string, now time.Time) (Target, error) {
	t := Target{text: text, offset: -1}
	number, isOffset := strings.CutPrefix(text, "offset:")
	switch {
	case text == "" || text == "earliest":
		t.text = "earliest"
		return t, nil
	case isOffset:
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil || n < 0 {
			return t, bad("to", "%q is no offset: want for example offset:23045", number)
		}
		t.offset = n
		return t, nil
	case strings.HasPrefix(text, "-"):
		d, err := config.ParseDuration(text[1:])
		if err != nil || d <= 0 {
			return t, bad("to", "%q is no time ago: want for example -36h or -2d", text)
		}
		t.at = now.Add(-d)
		return t, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, bad("to", "%q is none of earliest, a time such as 2026-11-28T04:13:00Z, a time ago such as -36h, offset:N", text)
	}
	if at.After(now) {
		return t, bad("to", "%s lies in the future: a reset there would skip what waits, not replay", text)
	}
	t.at = at
	return t, nil
}

// String is the target as it was written.
func (t Target) String() string { return t.text }

// OffsetLister finds the first record at or after a time; kafka.Client is one.
type OffsetLister interface {
	ListOffsets(ctx context.Context, at map[string]map[int32]time.Time) (map[string]map[int32]kafka.ListedOffset, error)
}

// Place sets the partitions' targets as Kafka's own tool would: what lies
// outside the log becomes its end. The warnings say where that is so.
func (t Target) Place(ctx context.Context, lister OffsetLister, topics []Topic) (warnings []string, err error) {
	var found map[string]map[int32]kafka.ListedOffset
	if !t.at.IsZero() {
		ask := map[string]map[int32]time.Time{}
		for _, topic := range topics {
			ask[topic.Topic] = map[int32]time.Time{}
			for _, p := range topic.Partitions {
				ask[topic.Topic][p.Partition] = t.at
			}
		}
		if found, err = lister.ListOffsets(ctx, ask); err != nil {
			return nil, err
		}
	}
	for i := range topics {
		topic := &topics[i]
		var before, after int
		for j := range topic.Partitions {
			p := &topic.Partitions[j]
			switch {
			case !t.at.IsZero():
				a, ok := found[topic.Topic][p.Partition]
				if !ok || a.Err != nil {
					return nil, fmt.Errorf("topic %s, partition %d: which record is of %s could not be read: %w", topic.Topic, p.Partition, t.text, a.Err)
				}
				if p.Target = a.Offset; a.Offset < 0 {
					p.Target = p.LogEnd
				}
				p.Target = max(p.Target, p.LogStart)
				if p.Target == p.LogStart {
					before++
				}
				if p.Target >= p.LogEnd {
					after++
				}
			case t.offset < 0:
				p.Target = p.LogStart
			default:
				p.Target = min(max(t.offset, p.LogStart), p.LogEnd)
				if t.offset < p.LogStart {
					before++
				}
				if t.offset > p.LogEnd {
					after++
				}
			}
			p.Skipped = max(0, p.Target-max(p.Committed, p.LogStart))
		}
		n := len(topic.Partitions)
		switch {
		case !t.at.IsZero() && after == n && topic.anyRecords():
			return nil, bad("to", "%s lies after the last record of every partition of topic %s: a reset there replays nothing", t.text, topic.Topic)
		case after == n && t.offset > 0:
			return nil, bad("to", "offset %d lies beyond the end of every partition of topic %s (%s)", t.offset, topic.Topic, topic.ends())
		case !t.at.IsZero() && before == n && topic.anyRecords():
			warnings = append(warnings, fmt.Sprintf("%s lies before the first record of topic %s: the same as earliest.", t.text, topic.Topic))
		case t.at.IsZero() && before > 0:
			warnings = append(warnings, fmt.Sprintf("offset %d lies before the start of %d of %d partitions of topic %s: Kafka resets those to their start.", t.offset, before, n, topic.Topic))
		case t.at.IsZero() && after > 0:
			warnings = append(warnings, fmt.Sprintf("offset %d lies beyond the end of %d of %d partitions of topic %s: Kafka resets those to their end.", t.offset, after, n, topic.Topic))
		}
	}
	return warnings, nil
}

func (t *Topic) anyRecords() bool {
	for _, p := range t.Partitions {
		if p.LogStart < p.LogEnd {
			return true
		}
	}
	return false
}

func (t *Topic) ends() string {
	var parts []string
	for _, p := range t.Partitions {
		if len(parts) == 4 {
			parts = append(parts, "…")
			break
		}
		parts = append(parts, fmt.Sprintf("partition %d ends at %d", p.Partition, p.LogEnd))
	}
	return strings.Join(parts, ", ")
}
