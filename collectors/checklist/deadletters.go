package checklist

import "oncewatch/collectors/number"

// deadLetters: an event that could not be applied has been put aside, and
// waits for somebody to mend its cause and send it again.
func deadLetters(s subject) Line {
	l := Line{Rule: "dead-letters", Title: "Has any event been put aside unapplied?", Threshold: "none"}
	v, ok := s.told(&l, "only the consumer counts what it put into the dead letters", deadLettered)
	if !ok {
		return l
	}
	n, ok := whole(v.DeadLettered.Value)
	if !ok {
		l.Verdict, l.Meaning = Unknown, "The consumers' count of dead letters is no number."
		return l
	}
	l.Value = number.Of(n, "event")
	if n > 0 {
		l.Verdict = Warning
		l.Meaning = "Their effects are not there. The partition went on without them."
		l.Remedy = "reference-consumer deadletters list tells each one's reason; mend that, then requeue them."
		return l
	}
	l.Verdict, l.Meaning = OK, "Every event could be applied."
	return s.whole(l)
}
