package checklist

import (
	"fmt"
	"slices"
	"strings"

	"oncewatch/collectors/postgres"
)

// structure judges the marker table itself: does it guarantee what the pattern
// needs?
func structure(s Store, _ Facts) []Line {
	t := s.Markers.Table
	if t == nil {
		return nil
	}
	return []Line{uniqueness(t), timeIndex(t)}
}

// uniqueness: only a unique index on the group and the event id, and nothing
// more, makes a redelivery collide.
func uniqueness(t *postgres.Table) Line {
	l := Line{Rule: "unique-key", Title: "Does a second delivery collide with the first marker?"}
	if t.Has.EventID == "" {
		l.Verdict = Unknown
		l.Meaning = "The table has no known event id column, so its key cannot be judged."
		l.Remedy = "If it has one, map it with --postgres.column.event-id."
		return l
	}
	key := []string{t.Has.EventID}
	if t.Has.Group != "" {
		key = []string{t.Has.Group, t.Has.EventID}
	}
	l.Threshold = "unique (" + strings.Join(key, ", ") + ")"
	for _, i := range t.Indexes {
		if i.Unique {
			l.Evidence = append(l.Evidence, fmt.Sprintf("unique index %s on (%s)%s", i.Name, strings.Join(i.Columns, ", "), unusable(i)))
		}
	}
	create := t.CreateUniqueIndex(key...)
	switch {
	case create != "":
		create = "Remove the duplicates that it would name, then: " + create + ";"
	case t.PartitionedBy != "":
		create = "Partition by range of a UUIDv7 or ULID event id, whose key can be unique over all partitions (reference-consumer migrate --partitioned)."
	default:
		create = "Set --postgres.table to the table beneath, and see that it has such an index."
	}
	switch {
	case t.UniqueOn(key...):
		l.Value, l.Verdict = "yes", OK
		l.Meaning = "A redelivered event hits the unique index, and nothing is applied again."
	case slices.ContainsFunc(t.Indexes, func(i postgres.Index) bool {
		return i.Unique && i.Valid && slices.Contains(i.Columns, t.Has.ProcessedAt) && slices.Contains(i.Columns, t.Has.EventID)
	}):
		l.Value, l.Verdict = "no", Violated
		l.Meaning = fmt.Sprintf("The key includes %s, which differs at every delivery: every redelivery is accepted and its effect applied again, also a second later in the same partition.", t.Has.ProcessedAt)
		l.Remedy = "Partition by range of a UUIDv7 or ULID event id instead (reference-consumer migrate --partitioned): it prunes by dropping partitions and keeps the whole key unique."
	default:
		l.Value, l.Verdict = "no", Violated
		l.Meaning = "No valid unique index guards the event id: redeliveries are applied again."
		l.Remedy = create
	}
	return l
}

func unusable(i postgres.Index) string {
	switch {
	case !i.Valid:
		return ", invalid"
	case i.Partial:
		return ", partial"
	}
	return ""
}

// timeIndex: pruning and watching both go by time.
func timeIndex(t *postgres.Table) Line {
	if !t.Timed() {
		return noTime(t)
	}
	l := Line{Rule: "time-index", Title: "Can markers be found by age?", Threshold: "an index that begins with " + t.Has.ProcessedAt}
	for _, i := range t.Indexes {
		if !i.Valid {
			l.Evidence = append(l.Evidence, fmt.Sprintf("index %s is invalid: DROP INDEX CONCURRENTLY %s;", i.Name, sqlIn(t, i.Name)))
		}
	}
	if t.TimeIndex != "" {
		l.Evidence = append(l.Evidence, "index "+t.TimeIndex)
		l.Verdict, l.Value, l.Meaning = OK, "yes", "The pruner finds old markers without reading the table."
		if len(l.Evidence) > 1 {
			l.Verdict, l.Meaning = Warning, "An index of the table is invalid: it costs every insert and helps nobody."
			l.Remedy = "See the evidence."
		}
		return l
	}
	l.Verdict, l.Value = Warning, "no"
	l.Meaning = "Each prune batch reads the whole table, and the counts here come from a slow walk over its pages."
	switch create := t.CreateIndex(t.Has.ProcessedAt); {
	case create == "":
		l.Remedy = "Set --postgres.table to the table beneath, and see that it has such an index."
	case t.PartitionedBy != "": // where PostgreSQL builds none concurrently
		l.Remedy = "In a quiet hour, for it holds up writes while it builds: " + create + ";"
	default:
		l.Remedy = create + ";"
	}
	return l
}

// noTime: markers without a time cannot be pruned by age, nor compared with what
// the broker keeps.
func noTime(t *postgres.Table) Line {
	l := Line{Rule: "time-index", Title: "Can markers be found by age?", Threshold: "a time, and an index that begins with it", Verdict: Warning, Value: "no time",
		Meaning: "The markers carry no time: no pruner can go by age, and whether they outlive the broker's records cannot be told. Their number is counted page by page, now and then.",
		Remedy:  "Set --postgres.table to the table beneath."}
	if add := t.AddTime(); add != "" {
		l.Remedy = add + "; It locks the table for a moment, once it gets the lock, and rewrites nothing; the markers that are there get the time of that statement. Then leave out --postgres.column.processed-at=- and index the time."
	}
	return l
}

// ledger says where the counts themselves may be off.
func ledger(s Store, _ Facts) []Line {
	m := s.Markers
	if len(m.Inexact) == 0 {
		return nil
	}
	l := Line{Rule: "ledger-exact", Title: "Are the marker counts exact?", Verdict: Warning, Value: "perhaps not", Threshold: "exact",
		Meaning: "The counts may be off by what appeared unseen; the scrub corrects them later."}
	passing := true
	for _, reason := range m.Inexact {
		l.Evidence = append(l.Evidence, inexact[reason])
		if l.Remedy == "" {
			l.Remedy = mend[reason]
		}
		passing = passing && (reason == postgres.ReasonUnexplained || reason == postgres.ReasonCatchingUp)
	}
	if passing { // as on any busy table now and then: a doubt is no finding
		l.Verdict, l.Value, l.Meaning, l.Remedy = Unknown, "being verified", "The counts are doubted and are being verified.", "Look again in a minute."
	}
	return []Line{l}
}

var inexact = map[postgres.Reason]string{
	postgres.ReasonRole:        "the role does not see when others' transactions began (no pg_read_all_stats)",
	postgres.ReasonStandby:     "a hot standby does not show the primary's open transactions",
	postgres.ReasonPrepared:    "prepared transactions hide when they began",
	postgres.ReasonNoIndex:     "no index on the time: the table is counted page by page, now and then",
	postgres.ReasonNoTime:      "the markers carry no time: the table is counted page by page, now and then",
	postgres.ReasonUnexplained: "the server saw rows come or go that the ledger did not; a fast scrub looks for them",
	postgres.ReasonFuture:      "very many markers carry a future time",
	postgres.ReasonCatchingUp:  "more was pruned than one poll could follow",
}

var mend = map[postgres.Reason]string{
	postgres.ReasonRole:    "GRANT pg_read_all_stats to the exporter's role.",
	postgres.ReasonNoIndex: "Create the index on the time.",
	postgres.ReasonNoTime:  "Add the time: see \"Can markers be found by age?\"",
}
