package checklist

import (
	"fmt"

	"oncewatch/collectors/number"
	"oncewatch/collectors/poll"
	"oncewatch/collectors/postgres"
	"oncewatch/collectors/span"
)

// divergence is the failure row "handler opens its own connection": marker and
// effect that were not written in one transaction.
func divergence(s subject) Line {
	l := Line{Rule: "effect-divergence", Title: "Are marker and effect written in one transaction?", Threshold: "no row apart"}
	d := s.store.Divergence
	switch {
	case s.store.Effect == "":
		l.Verdict, l.Unasked = Unknown, askEffects
		l.Meaning = "Not looked at: no effect table is configured. Equal counts per day would prove nothing; the rows themselves have to be compared."
		l.Remedy = "Name the table the handler writes: --postgres.effect.table, and --postgres.effect.consumer-group."
		return l
	case d == nil:
		l.Verdict = Unknown
		l.Meaning = "Markers and effects could not be compared."
		l.Remedy = s.facts.why(s.store.of(poll.Divergence), "")
		return l
	}
	var n int64
	compared := false
	for _, r := range d.Rows {
		if r.Group != s.group {
			continue
		}
		compared = d.Compared > 0 && r.Rows >= 0
		n = add(n, r.Rows)
		if r.Rows > 0 {
			l.Evidence = append(l.Evidence, fmt.Sprintf("%s rows: %s", number.Grouped(r.Rows), kinds[r.Kind]))
		}
	}
	for _, p := range d.Problems() {
		l.Evidence = append(l.Evidence, p.Err.Error())
	}
	if !compared {
		l.Verdict = Unknown
		l.Meaning = "No marker of this group was in the compared time."
		if only := s.store.Markers.Config.Effect.Group; only != "" && only != s.group {
			l.Meaning = fmt.Sprintf("Not looked at: --postgres.effect.consumer-group=%s, so the effects of that group alone are compared.", only)
		}
		return l
	}
	l.Value = number.Of(n, "row")
	l.Evidence = append(l.Evidence, fmt.Sprintf("compared with %s, %s of the closed minutes of the last %s", d.Effects, share(d.Compared), span.Text(s.store.Markers.Config.Effect.Window)))
	if n > 0 {
		l.Verdict = Violated
		l.Meaning = "Some markers and effects do not belong to one transaction: a crash between the two loses an event or applies it twice."
		l.Remedy = "Hand the marker's transaction to the handler, and forbid it a connection of its own."
		return l
	}
	l.Verdict, l.Meaning = OK, "Every marker has its effect, written in the same transaction as far as the columns can tell."
	return l
}

var kinds = map[string]string{
	postgres.MarkerWithoutEffect:  "a marker without its effect",
	postgres.EffectWithoutMarker:  "an effect without its marker",
	postgres.DifferentTransaction: "marker and effect from different transactions",
	postgres.CountDifference:      "more of one than of the other in a minute",
}
