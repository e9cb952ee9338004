package postgres

import (
	"regexp"
	"strconv"
	"time"

	"oncewatch/collectors/postgres/cells"
)

// leafFile is a table that holds rows, as it was met last.
type leafFile struct {
	file int64
	span window // of the times its rows can have
}

// meetTables compares the tables that hold the rows with those of the last
// poll. One that came, went or was rewritten names the span of time that is to
// be counted again.
func (l *ledger) meetTables(r *reading) {
	now := make(map[int64]leafFile, len(r.stats))
	bounds := make(map[int64]string, len(l.table.Leaves))
	for _, leaf := range l.table.Leaves {
		bounds[int64(leaf.OID)] = leaf.Bound
	}
	for _, s := range r.stats {
		now[s.oid] = leafFile{s.file, l.table.timesOf(bounds[s.oid])}
	}
	was := l.files
	l.files = now
	if was == nil {
		l.tally.restart(r.stats)
		return
	}
	var doubtful []window
	for oid, x := range now {
		if old, ok := was[oid]; !ok || old != x {
			doubtful = append(doubtful, x.span)
			if ok {
				doubtful = append(doubtful, old.span)
			}
		}
	}
	for oid, x := range was {
		if _, ok := now[oid]; !ok {
			doubtful = append(doubtful, x.span)
		}
	}
	for _, w := range joinWindows(doubtful) {
		if w.lo == cells.MinTime && w.hi == cells.MaxTime {
			l.doubtAll(r, ReasonStructure)
			return
		}
	}
	for _, w := range joinWindows(doubtful) {
		lo, hi := w.lo, w.hi
		if lo != cells.MinTime {
			lo = cells.Floor(lo, l.width)
		}
		if hi != cells.MaxTime {
			hi = cells.Ceil(hi, l.width)
		}
		l.tally.disturbed(window{lo, hi})
		l.suspects.doubt(lo, hi, ReasonStructure, true, false)
	}
	if len(doubtful) > 0 {
		l.tally.follow(r.stats)
	}
}

// meetServer doubts everything where another server took over: one that
// replicated asynchronously lacks the last that the other had committed.
func (l *ledger) meetServer(r *reading) {
	now := serverIdentity{r.session.Started, r.session.Timeline, r.session.Standby}
	was := l.server
	l.server = now
	switch {
	case l.clock == 0 || now == was:
	case now.timeline != was.timeline || now.standby != was.standby:
		l.store.log.Info("another server has taken over, or this one was restored: all is counted again", "timeline", now.timeline)
		l.open.owed = append(l.open.owed, window{l.tailFrom - failover, l.tailFrom})
		l.doubtAll(r, ReasonFailover)
	default:
		// Restarted. After a crash it has forgotten its tally, which shows
		// where there was one.
		l.open.owed = append(l.open.owed, window{l.tailFrom - failover, l.tailFrom})
		var told int64
		for _, s := range l.tally.leaves {
			told += s.inserted + s.updated + s.deleted
		}
		if told == 0 {
			l.doubtAll(r, ReasonStatistics)
		}
	}
}

// serverIdentity tells a server from another, and a start from the next.
type serverIdentity struct {
	started, timeline string
	standby           bool
}

// everything is the span of all times.
var everything = window{cells.MinTime, cells.MaxTime}

var rangeBound = regexp.MustCompile(`^FOR VALUES FROM \((MINVALUE|'[^']*')\) TO \((MAXVALUE|'[^']*')\)$`)

// timesOf is the span of times that a partition's bound allows: everything
// where the table is not partitioned by the time, or only in part.
func (t *Table) timesOf(bound string) window {
	if len(t.PartitionColumns) != 1 || t.PartitionColumns[0] != t.Has.ProcessedAt {
		return everything
	}
	m := rangeBound.FindStringSubmatch(bound)
	if m == nil {
		return everything
	}
	lo, ok1 := t.boundTime(m[1], cells.MinTime)
	hi, ok2 := t.boundTime(m[2], cells.MaxTime)
	if !ok1 || !ok2 {
		return everything
	}
	return window{lo, hi}
}

// boundTime reads one end of a bound.
func (t *Table) boundTime(text string, open int64) (int64, bool) {
	if text == "MINVALUE" || text == "MAXVALUE" {
		return open, true
	}
	text = text[1 : len(text)-1]
	if t.Epoch > 0 {
		n, err := strconv.ParseInt(text, 10, 64)
		return n*int64(t.Epoch) - t.Ahead, err == nil && n > firstTime/int64(t.Epoch) && n < lastTime/int64(t.Epoch)
	}
	for _, layout := range []string{"2006-01-02 15:04:05.999999-07", "2006-01-02 15:04:05.999999-07:00", "2006-01-02 15:04:05.999999-07:00:00", "2006-01-02 15:04:05.999999"} {
		if at, err := time.Parse(layout, text); err == nil {
			return at.UnixMicro() - t.Ahead, true
		}
	}
	return 0, false
}
