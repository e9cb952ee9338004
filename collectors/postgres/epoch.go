package postgres

import (
	"fmt"
	"math"

	"oncewatch/collectors/postgres/cells"
)

// units are the microseconds in a unit of a time that is a number since 1970.
var units = map[string]int64{"s": cells.Second, "ms": cells.Second / 1000, "us": 1}

// epoch counts the time since 1970 in units of so many microseconds; 0 is a
// column that is a timestamp.
type epoch int64

// literal is the first number that is not before t.
func (e epoch) literal(t int64) string {
	switch {
	case t <= firstTime:
		return fmt.Sprintf("'%d'::bigint", int64(math.MinInt64))
	case t > lastTime:
		return fmt.Sprintf("'%d'::bigint", int64(math.MaxInt64))
	}
	return fmt.Sprintf("'%d'::bigint", cells.Ceil(t, int64(e))/int64(e))
}

// clamp keeps what is no sensible time within what a timestamp can hold.
func (e epoch) clamp(expr string) string {
	return fmt.Sprintf("least(greatest(%s, %d), %d)", expr, firstTime/int64(e), lastTime/int64(e))
}

// timestamp is the number as timestamptz. A division is rounded once, so that
// no microsecond is lost.
func (e epoch) timestamp(expr string) string {
	return fmt.Sprintf("to_timestamp(%s / %d::float8)", e.clamp(expr), cells.Second/int64(e))
}

// bin rounds the number down, to a multiple of the width beyond the origin.
func (e epoch) bin(width int64, expr string, origin int64) string {
	return fmt.Sprintf("(%[1]s - mod(mod(%[1]s - (%[3]d), %[2]d) + %[2]d, %[2]d))", e.clamp(expr), max(width/int64(e), 1), origin/int64(e))
}
