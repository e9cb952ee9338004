package span_test

import (
	"cmp"
	"math"
	"testing"
	"time"

	"oncewatch/collectors/span"
)

const day = 24 * time.Hour

func TestText(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 7: "7ns", 800 * time.Microsecond: "800µs", 250*time.Millisecond + 1: "250ms", 1500 * time.Millisecond: "1s 500ms",
		90 * time.Second: "1m 30s", 8*day + 2*time.Hour + time.Minute: "8d 2h", day: "1d", -time.Hour: "-1h",
		math.MaxInt64: "unlimited", -math.MaxInt64: "-unlimited", math.MinInt64: "-unlimited",
	} {
		if got := span.Text(d); got != want {
			t.Errorf("%d = %q, want %q", int64(d), got, want)
		}
	}
}

func TestConversionsSaturate(t *testing.T) {
	for s, want := range map[float64]time.Duration{
		0: 0, 1.5: 1500 * time.Millisecond, -2: -2 * time.Second, 1e300: span.Unlimited, math.Inf(1): span.Unlimited,
		math.Inf(-1): -span.Unlimited, math.MaxInt64 / 1e9: span.Unlimited, -math.MaxFloat64: -span.Unlimited,
	} {
		if got := span.Seconds(s); got != want {
			t.Errorf("Seconds(%g) = %d, want %d", s, got, want)
		}
	}
	if got := span.Seconds(math.NaN()); got != 0 {
		t.Errorf("Seconds(NaN) = %d", got)
	}
}

var extremes = []time.Duration{math.MinInt64, -span.Unlimited, -day, -1, 0, 1, time.Millisecond, day, 8 * day, math.MaxInt64 - 1, span.Unlimited}

// Whatever is combined: the order of the operands is that of the result, and
// nothing wraps round.
func TestArithmeticSaturates(t *testing.T) {
	for _, a := range extremes {
		for _, b := range extremes {
			d := span.Sub(a, b)
			if low := -span.Unlimited; cmp.Compare(d, 0) != cmp.Compare(max(a, low), max(b, low)) {
				t.Errorf("Sub(%d, %d) = %d", a, b, d)
			}
		}
		for _, factor := range []float64{0, 0.5, 1 / 1.1, 1, 1.1, 1e300, math.Inf(1)} {
			scaled := span.Scale(a, factor)
			if a > 0 && scaled < 0 || a < 0 && scaled > 0 {
				t.Errorf("Scale(%d, %g) = %d", a, factor, scaled)
			}
			if a == span.Unlimited && factor > 0 && scaled != span.Unlimited {
				t.Errorf("Scale(unlimited, %g) = %d", factor, scaled)
			}
		}
		if up := span.Up(a); up < a {
			t.Errorf("Up(%d) = %d", a, up)
		}
		if down := span.Down(a); down < 0 || down > max(a, 0) {
			t.Errorf("Down(%d) = %d", a, down)
		}
		_, _, _ = span.Text(a), span.Text(span.Up(a)), span.Text(span.Down(a))
	}
}

// What Up and Down yield is written in full.
func TestRoundingToWhatIsWritten(t *testing.T) {
	for _, d := range []time.Duration{26*time.Hour + 59*time.Second, 61 * time.Second, 61*time.Minute + 1, 5*time.Second + 300*time.Microsecond} {
		up, down := span.Up(d), span.Down(d)
		if up < d || down > d || up-down > time.Hour {
			t.Errorf("%s: up %s, down %s", d, up, down)
		}
	}
}
