package checklist

import (
	"fmt"
	"math"
	"strconv"
	"strings"
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

// Things writes a number of things: 1 record, 2 records.
func Things(n int64, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return Number(n) + " " + thing
}

// Number writes a count in groups of three: 12,345,678.
func Number(n int64) string {
	s := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, s = "-", s[1:]
	}
	var b strings.Builder
	for i, c := range s {
		if i > 0 && (len(s)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(c)
	}
	return sign + b.String()
}

// Whole writes a count that was estimated or summed as a float.
func Whole(f float64) string {
	n, ok := whole(f)
	if !ok {
		return "an unknown number"
	}
	return Number(n)
}

// add is a sum of counts that saturates; what is negative is no count.
func add(a, b int64) int64 {
	if b = max(b, 0); a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
