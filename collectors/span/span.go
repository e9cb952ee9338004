// Package span has durations that saturate instead of wrapping round, and
// writes them for a person. What retention is compared with may be unlimited,
// and arithmetic with that must neither turn negative nor end the program.
package span

import (
	"fmt"
	"math"
	"time"
)

// Unlimited is a duration without end.
const Unlimited time.Duration = math.MaxInt64

// Seconds converts; what a Duration cannot hold becomes the nearest that it
// can, and NaN, which is no duration, 0: whoever may have one asks first.
func Seconds(s float64) time.Duration { return Float(s * float64(time.Second)) }

// Float converts a number of nanoseconds, with the same bounds.
func Float(ns float64) time.Duration {
	switch {
	case math.IsNaN(ns):
		return 0
	case ns >= math.MaxInt64:
		return Unlimited
	case ns <= -math.MaxInt64:
		return -Unlimited
	}
	return time.Duration(ns)
}

// Scale multiplies, to the millisecond. Unlimited stays so.
func Scale(d time.Duration, factor float64) time.Duration {
	if d == Unlimited && factor > 0 {
		return Unlimited
	}
	return Float(math.Round(factor*float64(d)/float64(time.Millisecond)) * float64(time.Millisecond))
}

// Sub is a - b. Without end minus what has one stays without end.
func Sub(a, b time.Duration) time.Duration {
	a, b = max(a, -Unlimited), max(b, -Unlimited)
	switch d := a - b; {
	case a == b:
		return 0
	case a == Unlimited, b == -Unlimited, a > 0 && b < 0 && d < 0:
		return Unlimited
	case b == Unlimited, a == -Unlimited, a < 0 && b > 0 && d > 0:
		return -Unlimited
	default:
		return d
	}
}

var units = []struct {
	size time.Duration
	name string
}{
	{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"},
	{time.Millisecond, "ms"}, {time.Microsecond, "µs"}, {time.Nanosecond, "ns"},
}

// Text writes a duration for a person, in its two largest units: 8d 2h, 3m 20s;
// below a second in one: 250ms.
func Text(d time.Duration) string {
	switch {
	case d == Unlimited:
		return "unlimited"
	case d <= -Unlimited:
		return "-unlimited"
	case d < 0:
		return "-" + Text(-d)
	}
	for i, u := range units {
		if d < u.size {
			continue
		}
		s := fmt.Sprintf("%d%s", d/u.size, u.name)
		if u.size >= time.Second {
			if rest := d % u.size / units[i+1].size; rest > 0 {
				s += fmt.Sprintf(" %d%s", rest, units[i+1].name)
			}
		}
		return s
	}
	return "0s"
}

// Up and Down round to what Text writes, so that the number a person reads is
// itself enough.
func Up(d time.Duration) time.Duration {
	g := grain(d)
	if d > Unlimited-g {
		return Unlimited
	}
	return (d + g - 1) / g * g
}

// Down is Up's other side; never negative.
func Down(d time.Duration) time.Duration {
	if d == Unlimited {
		return d
	}
	g := grain(d)
	return max(0, d) / g * g
}

// grain is the smaller of the units that Text writes, and at least what Kafka
// takes: a millisecond.
func grain(d time.Duration) time.Duration {
	for i, u := range units {
		if d >= u.size && u.size >= time.Second {
			return units[i+1].size
		}
	}
	return time.Millisecond
}
