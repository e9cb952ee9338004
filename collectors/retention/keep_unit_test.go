package retention

import (
	"testing"
	"time"

	"oncewatch/collectors/postgres"
)

// What was kept of a table without offsets says nothing about another table of
// its name: neither since when its markers were watched nor what was pruned.
func TestWhatWasKeptByTimeOfAnotherTableIsForgotten(t *testing.T) {
	t.Parallel()
	key := timesKey{"x", "g", ""}
	for _, c := range []struct {
		name string
		now  postgres.Markers
		kept bool
	}{
		{"the same table", postgres.Markers{Database: "x", Identity: "table 1", Ready: true}, true},
		{"another one, not counted yet", postgres.Markers{Database: "x", Identity: "table 2"}, true},
		{"another one", postgres.Markers{Database: "x", Identity: "table 2", Ready: true}, false},
		{"another store", postgres.Markers{Database: "y", Identity: "table 2", Ready: true}, true},
	} {
		s := New(Options{})
		s.Restore(&Kept{Database: "x", Watched: &Watched{Identity: "table 1"}, Times: []*Times{{Group: "g", From: time.Unix(1, 0), Gone: time.Unix(2, 0)}}})
		s.forgetOthers([]*postgres.Markers{&c.now})
		if (s.times[key] != nil) != c.kept {
			t.Errorf("%s: kept is %t, want %t", c.name, s.times[key] != nil, c.kept)
		}
	}
}
