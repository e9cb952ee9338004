package postgres

import (
	"slices"
	"testing"
	"time"
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

// What the server tells of beyond what the ledger has found is never taken for
// nothing, but after a whole recount that found nothing.
func TestTallyOfTheServer(t *testing.T) {
	t.Parallel()
	var tally tally
	now := leafStats{oid: 1, inserted: 1000, live: 950, deleted: 50}
	tally.restart([]leafStats{now})
	step := func(what string, change func(), came, went int64, want bool) {
		t.Helper()
		change()
		tally.note(0, came, went, false)
		if !tally.read([]leafStats{now}, false) {
			t.Errorf("%s: a reset", what)
		}
		tally.told = tally.server
		if got := tally.excess(0); got != want {
			t.Errorf("%s: %t, want %t (%+v)", what, got, want, tally)
		}
	}
	settle := func(corrected int64) {
		tally.corrected = corrected
		tally.settle(false)
	}
	step("nothing", func() {}, 0, 0, false)
	step("late report", func() {}, 100, 0, false)
	step("it comes", func() { now.inserted += 100; now.live += 100 }, 0, 0, false)
	step("a prune that is seen", func() { now.deleted += 200; now.live -= 200 }, 0, 200, false)
	step("inserts rolled back: dead at once", func() { now.inserted += 30 }, 0, 0, false)
	step("a deletion that is not seen", func() { now.deleted += 5; now.live -= 5 }, 0, 0, true)
	step("still not", func() {}, 0, 0, true)
	settle(5)
	step("found", func() {}, 0, 5, false)
	step("as many in as out", func() { now.deleted += 7; now.inserted += 7 }, 0, 0, true)
	settle(14)
	step("found, too", func() {}, 7, 7, false)
	step("updates", func() { now.updated += 3 }, 0, 0, true)
	settle(0) // a whole recount found nothing
	step("they changed nothing that counts", func() {}, 0, 0, false)
	step("one more", func() { now.updated++ }, 0, 0, true)
	settle(2)
	step("which moved a row", func() {}, 1, 1, false)
	step("back-dated, and analyzed", func() { now.inserted += 4; now.live = 900; now.estimated++ }, 0, 0, true)
	step("found by the recount", func() {}, 4, 0, false)
	step("reports that are lost", func() {}, 50, 0, false)
	for i := range tally.late {
		tally.late[i].found = time.Now().Add(-2 * reportLag)
	}
	step("for good", func() {}, 0, 0, false)
	step("they hide nothing", func() { now.inserted += 10; now.live += 10 }, 0, 0, true)
	step("found by the rest of the ledger", func() {}, 10, 0, false)
	settle(0) // what the alarm told of was found, so none of it means nothing
	step("as many again", func() { now.inserted += 10; now.live += 10 }, 0, 0, true)
	settle(10)
	step("and found", func() {}, 10, 0, false)
	step("a partition went, with what was to be told of it", func() {
		tally.note(5, 0, 20, false)
		tally.disturbed(window{1, 10})
	}, 0, 0, false)
	step("it hides nothing", func() { now.deleted += 3; now.live -= 3 }, 0, 0, true)
	now.deleted = 0
	if tally.read([]leafStats{now}, false) {
		t.Error("a reset of the statistics goes unnoticed")
	}
}
