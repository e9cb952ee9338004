package postgres

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestAgesAcrossAChangeOfClocks(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	wall := func(s string) time.Time {
		at, err := time.Parse("2006-01-02 15:04", s)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	for _, c := range []struct {
		what, now, utc, at string
		want               time.Duration
	}{
		{"autumn, two hours after the change", "2026-10-25 04:00", "2026-10-25 03:00", "2026-10-25 01:00", 4 * time.Hour},
		{"autumn, from the second of the hours", "2026-10-25 04:00", "2026-10-25 03:00", "2026-10-25 02:30", 90 * time.Minute},
		{"the hour that comes twice, the first time", "2026-10-25 02:30", "2026-10-25 00:30", "2026-10-25 01:30", time.Hour},
		{"the same, the second time", "2026-10-25 02:30", "2026-10-25 01:30", "2026-10-25 01:30", 2 * time.Hour},
		{"a marker of the first, seen in the second", "2026-10-25 02:10", "2026-10-25 01:10", "2026-10-25 02:50", 20 * time.Minute},
		{"spring", "2027-03-28 04:00", "2027-03-28 02:00", "2027-03-28 01:30", 90 * time.Minute},
		{"no change between", "2026-12-01 12:00", "2026-12-01 11:00", "2026-11-30 12:00", 24 * time.Hour},
	} {
		m := &Markers{ServerTime: wall(c.now), ReadAt: wall(c.utc), zone: berlin}
		if got := m.Age(wall(c.at), m.ReadAt); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
}

// A column without zone, filled with the wall clock of Berlin: markers are
// counted exactly, and are as old as they are, while the clocks are set back
// and two hours later.
func TestTheClocksAreSetBack(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	change := time.Now().Truncate(time.Hour).Add(24 * time.Hour)
	offset := func(at time.Time) (seconds int) { _, seconds = at.In(berlin).Zone(); return seconds }
	for offset(change) >= offset(change.Add(-time.Hour)) {
		change = change.Add(time.Hour)
	}
	b := newBench(t, Config{TimeZone: "Europe/Berlin"}, warpSQL)
	w := &workload{bench: b, ahead: time.Until(change) - 3*time.Hour}
	b.exec(fmt.Sprintf("ALTER DATABASE %s SET search_path = public, warp, pg_catalog", b.dsn[strings.LastIndex(b.dsn, "/")+1:strings.LastIndex(b.dsn, "?")]))
	b.exec(warpPath)
	b.exec("SET TimeZone = 'Europe/Berlin'")
	b.exec(strings.ReplaceAll(runbookDDL, "timestamptz", "timestamp"))
	b.store.now = func() time.Time { return time.Now().Add(w.ahead) }
	w.pass(0)
	b.insert("g", "t", 10, 0)
	first := b.store.now()
	for n, step := range []time.Duration{time.Hour, time.Hour, 59 * time.Minute, time.Minute + 10*time.Second, 30 * time.Second, time.Hour, 2 * time.Hour} {
		for d := step; d > 0; d -= 5 * time.Minute { // polls are never far apart
			w.pass(min(d, 5*time.Minute))
			b.poll()
		}
		b.insert("g", "t", 5, 0)
		m := b.pollExact()
		s := m.find("g", "t")
		if second := b.store.now().Sub(change); second < 0 || second > time.Hour {
			// In the second of the hours the last of the first has the latest time.
			near(t, fmt.Sprintf("step %d: the newest", n), m.Age(s.Newest, m.ReadAt), 0, 20*time.Second)
		}
		near(t, fmt.Sprintf("step %d: the oldest", n), m.Age(s.Oldest, m.ReadAt), b.store.now().Sub(first), 20*time.Second)
		if want := int64(10 + 5*(n+1)); s.Rows != want {
			t.Errorf("step %d: %d rows, want %d", n, s.Rows, want)
		}
	}
}
