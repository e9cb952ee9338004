package postgres

// seriesKey is what a count is kept for.
type seriesKey struct{ group, topic string }

// series is what is remembered of a consumer group × topic beside its cells.
type series struct {
	key              seriesKey
	inserted, pruned int64
	observed         int64 // age at which markers were last seen to be pruned
	hasObserved      bool
	edge             map[int64]PrunedOffset // by partition
	handled          map[int64]*handled     // by partition
}

// seriesTable numbers the series, in the order in which they were first seen.
type seriesTable struct {
	ids map[seriesKey]int32
	all []*series

	// handledOf is the table that the series' handled offsets are of;
	// handledAll says that all its markers have been looked at once.
	handledOf  identity
	handledAll bool
}

func newSeriesTable() seriesTable { return seriesTable{ids: map[seriesKey]int32{}} }

func (t *seriesTable) intern(group, topic string) int32 {
	k := seriesKey{group, topic}
	id, ok := t.ids[k]
	if !ok {
		id = int32(len(t.all))
		t.ids[k] = id
		t.all = append(t.all, &series{key: k})
	}
	return id
}

func (t *seriesTable) at(id int32) *series { return t.all[id] }

// PrunedOffset is the highest offset of a partition whose marker was seen to
// vanish at the old end of the table.
type PrunedOffset struct {
	Offset int64
	// ProcessedAt is the time of the newest marker that vanished with it, in
	// microseconds of the column's clock.
	ProcessedAt int64
}

// pruneOffsets learns from a loss at the old end up to which offset markers
// are gone: all of a partition that vanished whole, else what lies below the
// lowest offset that is left.
func (s *series) pruneOffsets(c change, newest int64) {
	for _, was := range c.before.offsets {
		gone, left := was.max, false
		for _, is := range c.after.offsets {
			if is.partition == was.partition {
				left = is.min <= was.min
				gone = is.min - 1
			}
		}
		if left {
			continue
		}
		if s.edge == nil {
			s.edge = map[int64]PrunedOffset{}
		}
		if old, ok := s.edge[was.partition]; !ok || gone > old.Offset {
			s.edge[was.partition] = PrunedOffset{Offset: gone, ProcessedAt: newest}
		}
	}
}
