package checklist

import (
	"fmt"
	"math"

	"oncewatch/collectors/number"
)

// whole is a count as the sources tell it: what is negative or no number is
// none.
func whole(f float64) (n int64, ok bool) {
	switch {
	case math.IsNaN(f) || f < 0:
		return 0, false
	case f >= math.MaxInt64:
		return math.MaxInt64, true
	}
	return int64(f), true
}

// share writes a part of one as a percentage without decimals, and within its
// bounds.
func share(part float64) string {
	if math.IsNaN(part) {
		return "an unknown share"
	}
	return fmt.Sprintf("%.0f %%", 100*min(max(part, 0), 1))
}

// Whole writes a count that was estimated or summed as a float.
func Whole(f float64) string {
	n, ok := whole(f)
	if !ok {
		return "an unknown number"
	}
	return number.Grouped(n)
}

// add is a sum of counts that saturates; what is negative is no count.
func add(a, b int64) int64 {
	if b = max(b, 0); a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
