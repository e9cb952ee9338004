package replay_test

import (
	"strings"
	"testing"
	"time"

	"oncewatch/collectors/replay"
)

// On a terminal a bar with records, rate and time left is drawn again in its
// line and taken away at the end; elsewhere a line comes every ten seconds.
func TestBar(t *testing.T) {
	t.Parallel()
	show := func(width int) string {
		var b strings.Builder
		bar := replay.NewBar(&b, width)
		for s := range 31 {
			bar.Show(replay.Progress{Done: int64(s) * 1000, Total: 60_000, Records: int64(s) * 900, Elapsed: time.Duration(s) * time.Second})
		}
		bar.Clear()
		return b.String()
	}
	if got, want := show(0), "9,000 records, 900/s, 16 %, 50s left\n18,000 records, 900/s, 33 %, 40s left\n27,000 records, 900/s, 50 %, 30s left\n"; got != want {
		t.Errorf("elsewhere:\n%swant\n%s", got, want)
	}
	got := show(80)
	if n := strings.Count(got, "\r\x1b[K"); n != 31 || strings.Contains(got, "\n") || !strings.HasSuffix(got, "\r\x1b[K") {
		t.Errorf("drawn %d times, want 30 and once to clear: %q", n, got)
	}
	if want := "\r\x1b[K[" + strings.Repeat("=", 19) + strings.Repeat(" ", 20) + "] 27,000 records, 900/s, 50 %, 30s left"; !strings.Contains(got, want) {
		t.Errorf("on a terminal %q lacks %q", got, want)
	}
	for _, line := range strings.Split(show(30), "\r\x1b[K") {
		if len(line) > 45 {
			t.Errorf("a narrow terminal wraps %q", line)
		}
	}
}

// Names and ids come from outside: none of them reaches the terminal as it is.
func TestTextIsHarmless(t *testing.T) {
	t.Parallel()
	a := &replay.Answer{Group: "g\x1b]0;owned\x07", Warnings: []string{"x\x1b[2J"}, Topics: []replay.Topic{{Topic: "t\r", Partitions: []replay.Partition{{Why: "y\x9b"}}}},
		Verified: &replay.Verified{Twins: 1, SomeTwins: []replay.Twin{{EventID: "id\x1b[31m", At: "t/0@1"}}}}
	var b strings.Builder
	if err := a.Text(&b); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(b.String(), "\x1b\x07\r") {
		t.Errorf("%q", b.String())
	}
}
