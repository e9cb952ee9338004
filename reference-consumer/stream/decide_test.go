package stream

import "testing"

// Where a partition begins, from the committed offset
// and the database's.
func TestDecide(t *testing.T) {
	id, other := [16]byte{1}, [16]byte{2}
	log := extent{start: 100, end: 200}
	at := func(n int64) *progress { return &progress{topicID: id, next: n} }
	for name, c := range map[string]struct {
		committed int64
		db        *progress
		offset    int64
		lost      int64
	}{
		"new group":                           {-1, nil, -1, 0},
		"no row yet":                          {150, nil, 150, 0},
		"no row, below the start":             {60, nil, 100, 40},
		"no row, beyond the end":              {900, nil, 100, 0},
		"no row, at the end":                  {200, nil, 200, 0},
		"both agree":                          {150, at(150), 150, 0},
		"offset committed too early":          {180, at(150), 150, 0},
		"database restored, offset beyond":    {900, at(150), 150, 0},
		"replay by an operator":               {120, at(150), 120, 0},
		"group deleted":                       {-1, at(150), 150, 0},
		"offsets expired, database at end":    {-1, at(200), 200, 0},
		"committed below the start":           {60, at(150), 150, 0},
		"both below the start":                {60, at(70), 100, 30},
		"database below the start":            {150, at(70), 100, 30},
		"database beyond the end":             {150, at(300), 150, 0},
		"both beyond the end":                 {300, at(300), 100, 0},
		"database beyond the end, none there": {-1, at(300), 100, 0},
		"another topic of the same name":      {150, &progress{topicID: other, next: 150}, 100, 0},
		"another topic, nothing committed":    {-1, &progress{topicID: other, next: 7}, 100, 0},
	} {
		d := decide(c.committed, c.db, id, log)
		if d.offset != c.offset || d.lost != c.lost {
			t.Errorf("%s: offset %d, lost %d, want %d, %d", name, d.offset, d.lost, c.offset, c.lost)
		}
	}
}
