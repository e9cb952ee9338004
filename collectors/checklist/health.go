package checklist

import (
	"fmt"
	"math"
	"time"

	"oncewatch/collectors/number"
	"oncewatch/collectors/poll"
	"oncewatch/collectors/span"
)

// Bounds of the table's health. They are suspects, not proofs: what they do to
// the consumer shows in its handling time.
const (
	longHorizon = time.Hour
	bloated     = 2.0
	deadShare   = 0.2
	deadMin     = 100_000
	// A vacuum that comes less often than daily, for more than this many rows.
	rareVacuum = 1_000_000
)

// health judges what a slow table is suspected for first.
func health(s Store, f Facts) []Line {
	h := s.Health
	if h == nil {
		return []Line{{
			Rule: "table-health", Title: "Is the table in good health?", Verdict: Unknown,
			Meaning: "Sizes, dead rows and vacuum could not be read.", Remedy: f.why(s.of(poll.Table), ""),
		}}
	}
	return []Line{horizon(s), indexes(s), deadRows(s, f), autovacuum(s, f)}
}

// horizon: an old snapshot keeps vacuum from removing what was pruned.
func horizon(s Store) Line {
	l := Line{Rule: "vacuum-horizon", Title: "Does anything hold vacuum back?", Threshold: "below " + span.Text(longHorizon)}
	if len(s.Health.Holders) == 0 {
		l.Verdict = Unknown
		l.Meaning = "The role does not see other sessions' transactions."
		l.Remedy = "GRANT pg_read_all_stats to the exporter's role."
		return l
	}
	var worst time.Duration
	var who string
	for _, x := range s.Health.Holders {
		if x.Age >= worst {
			worst, who = x.Age, x.Kind
		}
		l.Evidence = append(l.Evidence, fmt.Sprintf("%s: %s", holders[x.Kind], span.Text(x.Age)))
	}
	l.Value = span.Text(worst)
	if worst < longHorizon {
		l.Verdict, l.Meaning = OK, "Vacuum can remove pruned markers."
		return l
	}
	l.Verdict = Warning
	l.Meaning = "Pruned markers cannot be removed: table and index grow, and every prune walks over the dead."
	l.Remedy = release[who]
	return l
}

var holders = map[string]string{
	"session":              "the oldest open transaction",
	"prepared_transaction": "the oldest prepared transaction",
	"replication_slot":     "the oldest replication slot",
}

var release = map[string]string{
	"session":              "Find it: SELECT pid, usename, state, xact_start, query FROM pg_stat_activity ORDER BY xact_start LIMIT 3; and set idle_in_transaction_session_timeout.",
	"prepared_transaction": "Find it: SELECT gid, prepared, owner FROM pg_prepared_xacts ORDER BY prepared; then COMMIT PREPARED or ROLLBACK PREPARED.",
	"replication_slot":     "Find it: SELECT slot_name, active, xmin FROM pg_replication_slots WHERE xmin IS NOT NULL; and drop the one that nobody uses.",
}

// indexes: bytes per marker against the least seen.
func indexes(s Store) Line {
	l := Line{Rule: "index-bloat", Title: "Have the indexes bloated?", Threshold: fmt.Sprintf("below %g × the least seen", bloated)}
	worst, name := 0.0, ""
	for _, i := range s.Health.Indexes {
		if !i.Valid {
			l.Evidence = append(l.Evidence, fmt.Sprintf("index %s is invalid, the remains of a failed CREATE or REINDEX CONCURRENTLY", i.Name))
		}
		if i.Bloat > 0 && !math.IsInf(i.Bloat, 1) {
			l.Evidence = append(l.Evidence, fmt.Sprintf("%s: %s, %.2f × its least per marker", i.Name, Bytes(i.Bytes), i.Bloat))
		} else {
			l.Evidence = append(l.Evidence, fmt.Sprintf("%s: %s", i.Name, Bytes(i.Bytes)))
		}
		if i.Bloat > worst && !math.IsInf(i.Bloat, 1) {
			worst, name = i.Bloat, i.Name
		}
	}
	if worst == 0 {
		l.Verdict = Unknown
		l.Meaning = "Too few markers to tell, or they are still being counted."
		return l
	}
	l.Value = fmt.Sprintf("%.2f ×", worst)
	if worst >= bloated {
		l.Verdict = Warning
		l.Meaning = "The index has grown much more than the table's markers. It slows the consumer only where its hot pages no longer fit into memory."
		l.Remedy = fmt.Sprintf("REINDEX INDEX CONCURRENTLY %s;", sqlIn(s.table(), name))
		return l
	}
	l.Verdict, l.Meaning = OK, "The indexes take about as much per marker as they did at best."
	return l
}

// deadRows: what vacuum has yet to remove.
func deadRows(s Store, f Facts) Line {
	h := s.Health
	l := Line{Rule: "dead-rows", Title: "Does vacuum keep up with pruning?"}
	if h.Standby || h.DeadRows < 0 {
		l.Verdict, l.Meaning = Unknown, "A standby does not know the primary's dead rows."
		l.Remedy = "Let the exporter read the primary."
		return l
	}
	live := s.Markers.Rows()
	allowed := max(int64(deadShare*float64(live)), deadMin)
	l.Value, l.Threshold = number.Grouped(h.DeadRows)+" dead rows", "below "+number.Grouped(allowed)
	if h.LastVacuum.IsZero() {
		l.Evidence = append(l.Evidence, "never vacuumed since the statistics were reset")
	} else {
		l.Evidence = append(l.Evidence, "last vacuumed "+span.Text(max(0, f.Now.Sub(h.LastVacuum)))+" ago")
	}
	if h.DeadRows > allowed {
		l.Verdict = Warning
		l.Meaning = "Deleted markers pile up faster than vacuum removes them."
		l.Remedy = "See what holds vacuum back; if nothing does: " + alter(s.table(), "SET (autovacuum_vacuum_scale_factor = 0.02)")
		return l
	}
	l.Verdict, l.Meaning = OK, "Vacuum removes what the pruner deletes."
	return l
}

// autovacuum: do its settings suit what comes and goes? In the steady state as
// many markers are deleted in a day as are inserted.
func autovacuum(s Store, f Facts) Line {
	h := s.Health
	l := Line{Rule: "autovacuum", Title: "Does autovacuum come often enough?", Threshold: "once a day, where it is for over " + number.Grouped(rareVacuum) + " rows"}
	if h.Standby {
		l.Verdict, l.Meaning = Unknown, "A standby does not know the primary's settings."
		l.Remedy = "Let the exporter read the primary."
		return l
	}
	if h.Autovacuum.Off {
		l.Verdict, l.Value = Warning, "off"
		l.Meaning = "Nothing removes pruned markers and nothing refreshes the planner's statistics, unless somebody runs VACUUM by hand."
		l.Remedy = alter(s.table(), "RESET (autovacuum_enabled)") + " SHOW autovacuum; must say on."
		return l
	}
	if h.Autovacuum.DeadRows < 0 {
		l.Verdict, l.Meaning = Unknown, "When it comes is not known."
		return l
	}
	l.Value = "at " + number.Grouped(h.Autovacuum.DeadRows) + " dead rows"
	perDay := 0.0
	for _, series := range s.Markers.All() {
		perDay += s.Markers.PerDay(&series, f.Now)
	}
	if !(perDay > 0) {
		l.Verdict, l.Meaning = Unknown, "How many markers a day brings is not known yet."
		return l
	}
	every := time.Duration(min(float64(h.Autovacuum.DeadRows)/perDay, 100*365) * float64(day))
	l.Evidence = append(l.Evidence, fmt.Sprintf("%s markers a day: so many are dead after %s", Whole(perDay), span.Text(every)))
	// Partitions that are dropped whole leave nothing dead behind.
	dropped := s.Markers.Table != nil && s.Markers.Table.PartitionedBy != "" && h.DeadRows < rareVacuum
	if every > day && h.Autovacuum.DeadRows > rareVacuum && !dropped {
		l.Verdict = Warning
		l.Meaning = "Pruned markers lie dead for more than a day before vacuum starts, and then it has all of them to remove at once. A share of a table this large is the wrong measure."
		l.Remedy = alter(s.table(), fmt.Sprintf("SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = %d)", max(rareVacuum, int64(min(perDay/24, math.MaxInt32)))))
		return l
	}
	l.Verdict, l.Meaning = OK, "Vacuum starts before many pruned markers have piled up."
	return l
}

// Bytes writes a size for a person.
func Bytes(n int64) string {
	n = max(0, n)
	units := []string{"B", "kB", "MB", "GB", "TB"}
	f := float64(n)
	i := 0
	for f >= 1000 && i < len(units)-1 {
		f /= 1000
		i++
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", f, units[i])
}
