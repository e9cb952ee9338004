package cells

import "oncewatch/collectors/handled"

// Kept is all of a ledger that cannot be read again from the table. With it a
// start is a comparison and no first look.
type Kept struct {
	// Table tells the table from every other: cells of one are worth nothing
	// for another.
	Table string
	// Clock is the server's at the last poll, in the ledger's time.
	Clock int64
	// Fine and Width are the widths of the buckets.
	Fine, Width int64
	Buckets     []*Bucket
	Series      []*Series
}

// Clone copies what changes later. Buckets do not: they are replaced.
func (s *Series) Clone() *Series {
	c := *s
	c.Handled = make(map[int64]*handled.Offsets, len(s.Handled))
	for p, h := range s.Handled {
		now := h.Snapshot()
		c.Handled[p] = &now
	}
	return &c
}
