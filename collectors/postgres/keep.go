package postgres

import (
	"slices"

	"oncewatch/collectors/postgres/cells"
)

// Keep copies what the ledger knows and could not read again; nil as long as
// not all markers are counted, and for a table that is counted page by page.
// It waits for a poll that runs.
func (s *Store) Keep() *cells.Kept {
	l := s.ledger
	l.running.Lock()
	defer l.running.Unlock()
	if l.table == nil || l.table.TimeIndex == "" || l.clock == 0 || !l.complete() {
		return nil
	}
	k := &cells.Kept{Table: l.ident.String(), Clock: l.clock, Fine: l.fine, Width: l.width, Buckets: slices.Clone(l.book.Buckets)}
	for _, series := range l.series.All {
		k.Series = append(k.Series, series.Clone())
	}
	return k
}

// Restore has the ledger start from what another kept: all is counted as at
// every start, and compared. Call it before the first poll. That finds out
// whether the table is the same; if not, refused is called with the reason and
// the start is a first look.
func (s *Store) Restore(k *cells.Kept, refused func(reason string)) {
	l := s.ledger
	l.running.Lock()
	defer l.running.Unlock()
	l.kept, l.refused = k, refused
}

// restore takes up what was kept, where it is of this table.
func (l *ledger) restore() {
	k := l.kept
	l.kept = nil
	if k == nil {
		return
	}
	if k.Table != l.ident.String() {
		if l.refused != nil {
			l.refused("it is of " + k.Table + ", and this is " + l.ident.String())
		}
		return
	}
	l.book = cells.Book{Buckets: k.Buckets}
	l.series = cells.NewSeriesTable(k.Series...)
	l.fine, l.width = k.Fine, k.Width
	l.handledOf, l.handledAll = l.ident, false
	l.compares = true
}
