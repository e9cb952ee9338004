package checklist

import (
	"fmt"
	"time"

	"oncewatch/collectors/number"
	"oncewatch/collectors/span"
)

// The producers' and the broker's own limits of a transaction, by Kafka's
// defaults: after the first the coordinator aborts it, and no producer may ask
// for more than the second.
const (
	transactionTimeout    = time.Minute
	transactionMaxTimeout = 15 * time.Minute
)

// transactions is whether the group waits for a transaction to end: readers of
// committed records get no further than the oldest open one.
func transactions(s subject) Line {
	l := Line{Rule: "open-transaction", Title: "Does the group wait for an open transaction?", Threshold: "at most " + span.Text(transactionTimeout)}
	if s.commits == nil {
		return Line{} // lost has said so
	}
	held, longest, unknown := 0, time.Duration(0), 0
	for _, p := range s.commits.Partitions {
		if !p.Lag.OK {
			unknown++
			continue
		}
		if !p.Held {
			continue
		}
		held++
		where := fmt.Sprintf("partition %d: offset %d is the first of a transaction that is still open; %s wait behind it", p.Partition, max(0, p.Next), number.Of(max(0, p.Lag.Value), "offset"))
		if w := p.Waiting; w.OK && !w.Value.IsZero() {
			open := max(0, s.facts.Now.Sub(w.Value))
			longest = max(longest, open)
			where += ", open for " + span.Text(open)
		}
		l.Evidence = append(l.Evidence, where)
	}
	switch {
	case held == 0 && (unknown > 0 || len(s.commits.Partitions) == 0):
		return Line{} // lag has said so
	case held == 0:
		l.Value, l.Verdict, l.Meaning = "no", OK, "No open transaction holds the group back."
	case longest > transactionMaxTimeout:
		l.Value, l.Verdict = "for "+span.Text(longest), Violated
		l.Meaning = "A transaction hangs: it is older than any the broker lets a producer ask for, and will not end by itself. A consumer of committed records gets no further, and what waits expires unread."
		l.Remedy = "kafka-transactions.sh find-hanging --topic " + shell(s.topic) + " names it, and abort ends it."
	case longest > transactionTimeout:
		l.Value, l.Verdict = "for "+span.Text(longest), Warning
		l.Meaning = "The group can go no further than the oldest open transaction, which is open for longer than transactions are as a rule."
		l.Remedy = "See what its producer does; the coordinator aborts it after the producer's transaction.timeout.ms."
	default:
		l.Value, l.Verdict = "for a moment", OK
		l.Meaning = "A transaction is open where the group stands, as is usual while producers are at work."
		if longest > 0 {
			l.Value = "for " + span.Text(longest)
		}
	}
	return l
}
