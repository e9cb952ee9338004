package checklist

import (
	"fmt"

	"oncewatch/collectors/consumer"
	"oncewatch/collectors/poll"
)

// told are the figures of the consumers for the subject, where it takes them
// and they tell; else the line is finished, and says why they do not.
func (s subject) told(l *Line, because string, needs ...func(consumer.Values) consumer.Figure) (consumer.Values, bool) {
	l.Verdict = Unknown
	switch {
	case !s.facts.ConsumersNamed:
		l.Unasked = askConsumers
		l.Meaning = "Not looked at: " + because + "."
		l.Remedy = "Name the consumers' own metrics with --consumer.metrics-url, or the Prometheus that has them with --prometheus.url."
		return consumer.Values{}, false
	case s.facts.Consumers == nil:
		l.Meaning = "None of the consumers' metrics could be read."
		l.Remedy = s.facts.why(poll.ID{Subject: poll.Consumers}, "")
		return consumer.Values{}, false
	case s.consumed == nil:
		l.Meaning = "The consumers that were read export nothing for this group and topic."
		l.Remedy = "Check --consumer.metrics-url; oncewatch check-metrics URL says what its page lacks."
		return consumer.Values{}, false
	}
	for _, need := range needs {
		f := need(*s.consumed)
		if f.OK() && !(f.Value >= 0) { // NaN too
			f.Missing = "what is exported is no number"
		}
		if !f.OK() {
			l.Meaning = "It cannot be told: " + f.Missing + "."
			l.Remedy = "Let the consumer export it: oncewatch check-metrics URL says how, and what else its page lacks."
			return consumer.Values{}, false
		}
		if f.From != "" {
			l.Evidence = append(l.Evidence, f.From)
		}
	}
	return *s.consumed, true
}

// whole turns an OK into what it is where some consumers were not read: the one
// that is missing may be the one with the fault.
func (s subject) whole(l Line) Line {
	if c := s.facts.Consumers; l.Verdict == OK && c != nil && c.Unread > 0 {
		l.Verdict = Unknown
		l.Meaning = fmt.Sprintf("%d of %d consumers could not be read. Of the others: %s", c.Unread, max(c.Unread, c.Sources), l.Meaning)
		l.Remedy = "See the sources for those that could not."
	}
	return l
}

// enough says whether so many events are enough to judge a share of them; else
// the line is finished.
func (s subject) enough(l *Line, events, rule float64) bool {
	want := max(s.facts.Consumers.Enough, rule)
	if events >= want {
		return true
	}
	l.Verdict, l.Meaning = Unknown, fmt.Sprintf("Too few events to say: %s, of %s that it takes.", Whole(events), Whole(want))
	if events == 0 {
		l.Value, l.Meaning = "no events", "No event has been handled in the time looked at."
	}
	l.Remedy = "Look again once more have been handled."
	return false
}

func processed(v consumer.Values) consumer.Figure    { return v.Processed }
func duplicate(v consumer.Values) consumer.Figure    { return v.Duplicates }
func p99(v consumer.Values) consumer.Figure          { return v.P99 }
func deadLettered(v consumer.Values) consumer.Figure { return v.DeadLettered }
