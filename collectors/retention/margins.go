package retention

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"oncewatch/collectors/kafka"
	"oncewatch/collectors/postgres"
	"oncewatch/collectors/span"
)

// Unlimited is a retention without end.
const Unlimited = span.Unlimited

// Numbers are the five retention numbers of a group on a topic, side by side.
type Numbers struct {
	// Topic is retention.ms as the broker applies it; WorstCase is how long a
	// record can really stay, retention.ms + segment.ms, since a segment is
	// deleted whole. Unlimited where the topic never deletes. Not known where it
	// deletes by size alone, and the worst case where it compacts too: there the
	// oldest record really there is what can be compared.
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
	if r := topic.Retention; r.OK && !r.Value.SizeLimited() {
		n.Topic, n.WorstCase = duration(r.Value.Seconds), duration(r.Value.WorstCaseSeconds)
		if n.Topic.OK && n.Topic.Value != Unlimited && n.WorstCase.Value == Unlimited {
			n.WorstCase = kafka.Known[time.Duration]{}
		}
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

// duration is seconds that a broker told.
func duration(s kafka.Known[float64]) kafka.Known[time.Duration] {
	if !s.OK {
		return kafka.Known[time.Duration]{}
	}
	return known(span.Seconds(s.Value))
}

// Compare fills in the numbers and what follows from them; factor is how many
// times the broker's retention the markers' should be.
func (s *Series) Compare(n Numbers, factor float64) {
	s.Numbers, s.Margins, s.Changes = n, margins(n), changes(n, s.Topic, factor)
}

// Margin is by how much one of the markers' numbers exceeds one of the topic's.
type Margin struct {
	// Marker and Record name the two numbers, for a person.
	Marker, Record       string
	MarkerAge, RecordAge time.Duration
	// Value is MarkerAge - RecordAge; -Unlimited where only the records are kept
	// for ever.
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
	if m.RecordAge == Unlimited { // no difference to show
		return fmt.Sprintf("%s %s, %s unlimited", m.Marker, span.Text(m.MarkerAge), m.Record)
	}
	return fmt.Sprintf("%s %s - %s %s = %s", m.Marker, span.Text(m.MarkerAge), m.Record, span.Text(m.RecordAge), span.Text(m.Value))
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
			out = append(out, Margin{Marker: m.name, Record: r.name, MarkerAge: m.Value, RecordAge: r.Value, Value: span.Sub(m.Value, r.Value)})
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
	bound := "at most "
	if c.AtLeast {
		bound = "at least "
	}
	s := fmt.Sprintf("%s: %s -> %s%s", c.Setting, span.Text(c.From), bound, span.Text(c.To))
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
	wanted := span.Up(span.Scale(worst, factor))
	if marker >= span.Scale(worst, factor) {
		return nil
	}
	var out []Change
	if wanted != Unlimited {
		c := Change{Setting: "retention of the markers", From: marker, To: wanted, AtLeast: true}
		if n.Configured.OK && n.Observed.OK && n.Observed.Value < n.Configured.Value-n.Configured.Value/100 {
			c.Setting = "what is really kept of the markers (configured: " + span.Text(n.Configured.Value) + ")"
		}
		out = append(out, c)
	}
	if !n.Topic.OK || !n.WorstCase.OK || outlived(n) {
		return out
	}
	most := span.Scale(marker, 1/factor) // what a record may stay
	segment := span.Sub(n.WorstCase.Value, n.Topic.Value)
	forSegment, forRetention := span.Down(span.Sub(most, n.Topic.Value)), span.Down(span.Sub(most, segment))
	switch {
	case n.Topic.Value == Unlimited:
		out = append(out, Change{Setting: "retention.ms + segment.ms of topic " + topic + ", cleanup.policy delete", From: Unlimited, To: span.Down(most)})
	case forSegment > 0:
		out = append(out, Change{Setting: "segment.ms of topic " + topic, From: segment, To: forSegment, Milliseconds: true})
	case forRetention > 0:
		out = append(out, Change{Setting: "retention.ms of topic " + topic, From: n.Topic.Value, To: forRetention, Milliseconds: true})
	default:
		out = append(out, Change{Setting: "retention.ms + segment.ms of topic " + topic, From: n.WorstCase.Value, To: span.Down(most)})
	}
	return out
}

// outlived says that records are there which even the worst case does not
// explain, give or take the broker's own schedule: a timestamp in the future
// keeps its segment, and no setting of retention.ms or segment.ms helps.
func outlived(n Numbers) bool {
	worst := n.WorstCase.Value
	return n.OldestRecord.OK && worst != Unlimited && span.Sub(n.OldestRecord.Value, worst) > worst/50+10*time.Minute
}
