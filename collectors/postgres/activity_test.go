package postgres

import (
	"slices"
	"testing"
)

func TestTransactionsThatEnded(t *testing.T) {
	t.Parallel()
	at := func(clock int64, open map[string]int64, prepared ...string) *activity {
		a := &activity{clock: clock, open: open, prepared: map[string]int64{}}
		for _, id := range prepared {
			a.prepared[id] = clock
		}
		return a
	}
	o := &openTransactions{slack: 5}
	over, o := o.ended(at(100, map[string]int64{"a": 90, "b": 20}), at(101, map[string]int64{"b": 20}))
	if len(over) != 0 {
		t.Errorf("%v ended before anything was known", over)
	}
	// a ended between the two readings of the first poll: it is counted at the
	// next one again.
	over, o = o.ended(at(200, map[string]int64{"b": 20, "c": hidden}), at(201, map[string]int64{"b": 20, "c": hidden}))
	if !slices.Equal(over, []window{{90, 90}}) {
		t.Errorf("%v ended, want a", over)
	}
	// c, whose start is hidden, began after the first poll; b is prepared.
	over, o = o.ended(at(300, map[string]int64{}, "7"), at(301, map[string]int64{}, "7"))
	slices.SortFunc(over, func(x, y window) int { return int(x.lo - y.lo) })
	if !slices.Equal(over, []window{{20, 20}, {95, 200}}) {
		t.Errorf("%v ended, want b and c", over)
	}
	// What is prepared may be either of them, or one begun since.
	over, _ = o.ended(at(400, nil), at(401, nil))
	slices.SortFunc(over, func(x, y window) int { return int(x.lo - y.lo) })
	if !slices.Equal(over, []window{{20, 20}, {95, 200}, {195, 300}}) {
		t.Errorf("%v when the prepared transaction ended", over)
	}
}

func TestTallyOfTheServer(t *testing.T) {
	t.Parallel()
	var tally tally
	at := func(live, deleted int64) []leafStats { return []leafStats{{oid: 1, live: live, deleted: deleted}} }
	step := func(what string, stats []leafStats, inserted, pruned int64, want bool) {
		t.Helper()
		tally.inserted += inserted
		tally.pruned += pruned
		if got := tally.excess(stats); got != want {
			t.Errorf("%s: %t, want %t", what, got, want)
		}
	}
	step("first", at(1000, 50), 0, 0, false)
	step("late report", at(1000, 50), 100, 0, false)
	step("it comes", at(1100, 50), 0, 0, false)
	step("a prune that is seen", at(900, 250), 0, 200, false)
	step("rolled back: dead at once", at(900, 250), 0, 0, false)
	step("a deletion that is not seen", at(895, 255), 0, 0, true)
	step("found by the scrub", at(895, 255), 0, 5, false)
	step("an insert that is not seen", at(898, 255), 0, 0, true)
	step("found", at(898, 255), 3, 0, false)
	step("statistics reset", at(0, 0), 0, 0, false)
	step("after it", at(10, 0), 10, 0, false)
	step("analyzed: live is an estimate", []leafStats{{oid: 1, live: 5000, rewritten: 1}}, 0, 0, false)
	step("another leaf", append([]leafStats{{oid: 1, live: 5000, rewritten: 1}}, leafStats{oid: 2, live: 77}), 0, 0, false)
}
