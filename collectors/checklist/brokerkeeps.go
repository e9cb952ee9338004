package checklist

import (
	"fmt"
	"time"

	"oncewatch/collectors/number"
	"oncewatch/collectors/span"
)

// brokerKeeps is how long a topic keeps its records: by its settings, and how
// long one can really stay. Where it deletes by size alone, or compacts what it
// deletes, no setting tells: what is really there is the measure.
func (s subject) brokerKeeps() (keep, worst time.Duration, what string, ok bool) {
	if s.log == nil || !s.log.Retention.OK {
		return 0, 0, "", false
	}
	settings := s.log.Retention.Value
	oldest := "the age of its oldest record is not known"
	there := s.retention != nil && s.retention.Numbers.OldestRecord.OK
	if there {
		oldest = "the oldest record really there is " + span.Text(s.retention.Numbers.OldestRecord.Value) + " old"
	}
	if settings.SizeLimited() {
		bytes, _ := whole(settings.Bytes.Value)
		what = fmt.Sprintf("it deletes by size alone (retention.bytes %s a partition); %s", number.Grouped(bytes), oldest)
		if !there {
			return 0, 0, what, false
		}
		keep = s.retention.Numbers.OldestRecord.Value
		return keep, keep, what, true
	}
	if !settings.Seconds.OK || !(settings.Seconds.Value >= 0) {
		return 0, 0, "", false
	}
	keep = span.Seconds(settings.Seconds.Value)
	if !settings.WorstCaseSeconds.OK || !(settings.WorstCaseSeconds.Value >= 0) {
		return keep, keep, fmt.Sprintf("retention.ms %s; how long a record can really stay is not known, since the broker does not tell segment.ms", span.Text(keep)), true
	}
	worst = span.Seconds(settings.WorstCaseSeconds.Value)
	if worst == span.Unlimited && keep != span.Unlimited {
		what = fmt.Sprintf("retention.ms %s, but the cleaner joins segments, and records outlive it; %s", span.Text(keep), oldest)
		if there {
			return max(keep, s.retention.Numbers.OldestRecord.Value), keep, what, true
		}
		return keep, keep, what, true
	}
	return keep, worst, fmt.Sprintf("retention.ms %s, a record can really stay %s (segments are deleted whole)", span.Text(keep), span.Text(worst)), true
}
