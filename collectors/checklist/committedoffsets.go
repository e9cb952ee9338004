package checklist

import (
	"fmt"
	"strings"
	"time"

	"oncewatch/collectors/poll"
	"oncewatch/collectors/span"
)

// committedOffsets is whether the group knows where to go on: committed offsets
// expire some time after its last member has left.
func committedOffsets(s subject) Line {
	l := Line{Rule: "committed-offsets", Title: "Does the group know where to go on?"}
	if s.facts.Retention == nil || s.facts.Groups == nil {
		return Line{} // exposed has said so
	}
	m := s.facts.Retention.FindMissing(s.group, s.topic)
	group := s.facts.Groups.Group(s.group)
	keep, told := time.Duration(0), false
	if s.facts.Topics != nil && s.facts.Topics.OffsetsRetention.OK {
		keep, told = s.facts.Topics.OffsetsRetention.Value, true
		l.Evidence = append(l.Evidence, "offsets.retention.minutes: the broker keeps the offsets of a group without members for "+span.Text(keep))
		l.Threshold = "back within " + span.Text(keep)
	}
	if marked := s.store.Markers.ConfiguredRetention(s.group); told && marked > 0 && marked < keep {
		l.Evidence = append(l.Evidence, fmt.Sprintf("markers are kept for %s: a group that comes back after that and before its offsets expire goes on where it stood, and what it had handled without committing has no marker any more", span.Text(marked)))
	}
	away := time.Duration(0)
	if group != nil && (group.State == "Empty" || group.State == "Dead") && !s.markers.Newest.IsZero() {
		away = max(0, s.store.Markers.Age(s.markers.Newest, s.facts.Now))
		l.Evidence = append(l.Evidence, "the group has no members, and its newest marker is "+span.Text(away)+" old")
	}
	switch {
	case m != nil && m.Gone:
		l.Verdict, l.Value = Warning, "no"
		l.Meaning = "The group has markers and no committed offset: expired, or deleted. Its next start begins where the consumer's reset policy says: at earliest it reads again all that is there, at latest it skips what came meanwhile."
		l.Remedy = "Before it starts, see how many events a reset to earliest would apply twice, and set its offsets to where they are safe (oncewatch replay --plan)."
		if len(m.Partitions) > 0 {
			list := make([]string, 0, len(m.Partitions))
			for _, id := range m.Partitions {
				list = append(list, fmt.Sprint(id))
			}
			l.Evidence = append(l.Evidence, "no committed offset on partition "+strings.Join(list, ", "))
		}
	case s.commits == nil || len(s.commits.Partitions) == 0:
		if group != nil && group.Readable {
			return Line{} // nothing handled yet, or another cluster's
		}
		l.Verdict, l.Meaning = Unknown, "The group's commits could not be read."
		l.Remedy = s.facts.why(poll.ID{Subject: poll.Groups}, "group "+s.group)
	case told && away > keep/2:
		l.Verdict, l.Value = Warning, fmt.Sprintf("for about %s more", span.Text(max(0, keep-away)))
		l.Meaning = "The group has been without members for long: its committed offsets expire, and then its next start begins where the consumer's reset policy says."
		l.Remedy = "Start the consumer before that, raise offsets.retention.minutes, or note its offsets now (kafka-consumer-groups.sh --export)."
	default:
		l.Verdict, l.Value, l.Meaning = OK, "yes", "Its committed offsets are there."
	}
	return l
}
