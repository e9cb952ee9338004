package retention

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"oncewatch/collectors/kafka"
	"oncewatch/collectors/postgres"
)

// Unlimited is a retention without end.
const Unlimited time.Duration = math.MaxInt64

// Numbers are the five retention numbers of a group on a topic, side by side.
type Numbers struct {
	// Topic is retention.ms as the broker applies it; WorstCase is how long a
	// record can really stay, retention.ms + segment.ms, since a segment is
	// deleted whole. Unlimited where the topic never deletes.
	Topic, WorstCase kafka.Known[time.Duration]
	// OldestRecord is the age of the oldest record really there, over all
	// partitions, by its timestamp. Not known where there is no record, or
	// where a partition's could not be read.
	OldestRecord kafka.Known[time.Duration]
	// Configured is what the pruner is said to keep; Observed the age at which
	// markers were last seen to be pruned.
	Configured, Observed kafka.Known[time.Duration]
}

func numbers(now time.Time, m *postgres.Markers, marked *postgres.Series, topic *kafka.Topic) Numbers {
	var n Numbers
	if d := m.ConfiguredRetention(marked.Group); d > 0 {
		n.Configured = known(d)
	}
	if marked.Pruning {
		n.Observed = known(marked.ObservedRetention)
	}
	if topic == nil {
		return n
	}
	if r := topic.Retention; r.OK {
		n.Topic, n.WorstCase = known(seconds(r.Value.Seconds)), known(seconds(r.Value.WorstCaseSeconds))
	}
	for _, p := range topic.Partitions {
		switch {
		case !p.Start.OK || !p.End.OK:
			n.OldestRecord = kafka.Known[time.Duration]{}
			return n
		case p.Start.Value >= p.End.Value:
			continue
		case !p.Oldest.OK:
			n.OldestRecord = kafka.Known[time.Duration]{}
			return n
		}
		if age := now.Sub(p.Oldest.Value); !n.OldestRecord.OK || age > n.OldestRecord.Value {
			n.OldestRecord = known(max(0, age))
		}
	}
	return n
}

// seconds converts, +Inf and what is as good as that to Unlimited.
func seconds(s float64) time.Duration {
	if s >= float64(math.MaxInt64)/1e9 {
		return Unlimited
	}
	return time.Duration(math.Round(s * 1e9))
}

// Margin is by how much one of the markers' numbers exceeds one of the topic's.
type Margin struct {
	// Marker and Record name the two numbers, for a person.
	Marker, Record       string
	MarkerAge, RecordAge time.Duration
	// Value is MarkerAge - RecordAge; the least Duration where the records are
	// kept for ever.
	Value time.Duration
}

// The names of the numbers.
const (
	TopicRetention      = "topic retention"
	WorstCase           = "worst case of the topic"
	OldestRecord        = "oldest record really there"
	ConfiguredRetention = "configured marker retention"
	ObservedRetention   = "observed marker retention"
)

func (m Margin) String() string {
	if m.RecordAge == Unlimited {
		return fmt.Sprintf("%s %s, %s unlimited", m.Marker, span(m.MarkerAge, false), m.Record)
	}
	return fmt.Sprintf("%s %s - %s %s = %s", m.Marker, span(m.MarkerAge, false), m.Record, span(m.RecordAge, false), span(m.Value, false))
}

// margins compares what is known of the markers with what is known of the
// records, the smallest margin first.
func margins(n Numbers) []Margin {
	var out []Margin
	for _, m := range []struct {
		name string
		kafka.Known[time.Duration]
	}{{ConfiguredRetention, n.Configured}, {ObservedRetention, n.Observed}} {
		for _, r := range []struct {
			name string
			kafka.Known[time.Duration]
		}{{TopicRetention, n.Topic}, {WorstCase, n.WorstCase}, {OldestRecord, n.OldestRecord}} {
			if !m.OK || !r.OK {
				continue
			}
			one := Margin{Marker: m.name, Record: r.name, MarkerAge: m.Value, RecordAge: r.Value, Value: m.Value - r.Value}
			if r.Value == Unlimited {
				one.Value = math.MinInt64
			}
			out = append(out, one)
		}
	}
	slices.SortStableFunc(out, func(a, b Margin) int { return cmp.Compare(a.Value, b.Value) })
	return out
}

// Change is one change of configuration that would by itself make the markers
// outlive the records by the factor.
type Change struct {
	// Setting names what to change, with the topic where it is the topic's.
	Setting string
	// From is what it is; To what it must be at least, or at most.
	From, To time.Duration
	AtLeast  bool
	// Milliseconds says that Kafka wants it as such.
	Milliseconds bool
}

func (c Change) String() string {
	from := "unlimited"
	if c.From != Unlimited {
		from = span(c.From, false)
	}
	bound := "at most "
	if c.AtLeast {
		bound = "at least "
	}
	s := fmt.Sprintf("%s: %s -> %s%s", c.Setting, from, bound, span(c.To, c.AtLeast))
	if c.Milliseconds {
		s += fmt.Sprintf(" (%d)", c.To.Milliseconds())
	}
	return s
}

// changes are what would mend the smallest margin, where it is below what the
// factor asks for: the markers' side first. Empty where nothing needs mending
// or where too little is known; where records are kept for ever, only the
// topic's retention helps.
func changes(n Numbers, topic string, factor float64) []Change {
	all := margins(n)
	if len(all) == 0 {
		return nil
	}
	marker := all[0].MarkerAge // the smaller of the two
	for _, m := range all {
		marker = min(marker, m.MarkerAge)
	}
	worst := time.Duration(0)
	for _, m := range all {
		worst = max(worst, m.RecordAge)
	}
	if worst != Unlimited && marker >= scale(worst, factor) {
		return nil
	}
	var out []Change
	if worst != Unlimited {
		c := Change{Setting: "retention of the markers", From: marker, To: up(scale(worst, factor)), AtLeast: true}
		if n.Configured.OK && n.Observed.OK && n.Observed.Value < n.Configured.Value-n.Configured.Value/100 {
			c.Setting = "what is really kept of the markers (configured: " + span(n.Configured.Value, false) + ")"
		}
		out = append(out, c)
	}
	if !n.Topic.OK || !n.WorstCase.OK || outlived(n) {
		return out
	}
	most := scale(marker, 1/factor) // what a record may stay
	segment := n.WorstCase.Value - n.Topic.Value
	switch {
	case n.Topic.Value == Unlimited:
		out = append(out, Change{Setting: "retention.ms + segment.ms of topic " + topic + ", cleanup.policy delete", From: Unlimited, To: down(most)})
	case down(most-n.Topic.Value) > 0:
		out = append(out, Change{Setting: "segment.ms of topic " + topic, From: segment, To: down(most - n.Topic.Value), Milliseconds: true})
	case down(most-segment) > 0:
		out = append(out, Change{Setting: "retention.ms of topic " + topic, From: n.Topic.Value, To: down(most - segment), Milliseconds: true})
	default:
		out = append(out, Change{Setting: "retention.ms + segment.ms of topic " + topic, From: n.WorstCase.Value, To: down(most)})
	}
	return out
}

// outlived says that records are there which even the worst case does not
// explain, give or take the broker's own schedule: a timestamp in the future
// keeps its segment, and no setting of retention.ms or segment.ms helps.
func outlived(n Numbers) bool {
	worst := n.WorstCase.Value
	return n.OldestRecord.OK && worst != Unlimited && n.OldestRecord.Value > worst+worst/50+10*time.Minute
}

// scale multiplies, to the millisecond.
func scale(d time.Duration, factor float64) time.Duration {
	return time.Duration(math.Round(factor*float64(d.Milliseconds()))) * time.Millisecond
}

var units = []struct {
	size time.Duration
	name string
}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}}

// grain is the smaller of the two units that span writes.
func grain(d time.Duration) time.Duration {
	for i, u := range units[:len(units)-1] {
		if d >= u.size {
			return units[i+1].size
		}
	}
	return time.Millisecond
}

// up and down round to what span writes, so that the number a person reads is
// itself enough.
func up(d time.Duration) time.Duration {
	g := grain(d)
	return (d + g - 1) / g * g
}

func down(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	g := grain(d)
	return d / g * g
}

// span writes a duration in its two largest units: 15d 10h.
func span(d time.Duration, roundUp bool) string {
	if d < 0 {
		return "-" + span(-d, roundUp)
	}
	if roundUp {
		d = up(d)
	}
	for i, u := range units {
		if d < u.size {
			continue
		}
		s := fmt.Sprintf("%d%s", d/u.size, u.name)
		if i+1 < len(units) {
			if rest := d % u.size / units[i+1].size; rest > 0 {
				s += fmt.Sprintf(" %d%s", rest, units[i+1].name)
			}
		}
		return s
	}
	return "0s"
}
