package postgres

import (
	"time"
	_ "time/tzdata" // the image has no files of zones

	"oncewatch/collectors/postgres/cells"
)

// A column without time zone holds a wall clock. Where that is set back or
// forward between a marker and now, the difference of the two is not the
// marker's age: the zone's offset then and now tells how far it is off.

// location is the zone whose wall clock the column holds; nil where its
// clocks are never changed, or Go does not know the zone.
func (t *Table) location() *time.Location {
	if !t.Zoneless {
		return nil
	}
	zone, err := time.LoadLocation(t.Zone)
	if err != nil {
		return nil
	}
	return zone
}

// offsets are those that a zone may have at a time of its wall clock (as if it
// were UTC), in microseconds: two different ones in the hour that comes twice,
// that of the first time first.
func offsets(zone *time.Location, wall int64) (first, second int64) {
	offset := func(instant int64) int64 {
		_, seconds := time.UnixMicro(instant).In(zone).Zone()
		return int64(seconds) * cells.Second
	}
	first, second = offset(wall-24*cells.Hour), offset(wall+24*cells.Hour)
	switch {
	case offset(wall-first) != first:
		return second, second
	case offset(wall-second) != second:
		return first, first
	}
	return first, second
}

// ago is how long before the poll a time of the column was, in microseconds. A
// marker of the hour that comes twice counts as the younger it can be.
func (m *Markers) ago(t time.Time) int64 {
	wall, clock := t.UnixMicro(), m.ServerTime.UnixMicro()
	if m.zone == nil || wall < firstTime || wall > lastTime-24*cells.Hour {
		return clock - wall
	}
	now, second := offsets(m.zone, clock)
	if at := m.ReadAt.UnixMicro(); distance(clock-second, at) < distance(clock-now, at) {
		now = second
	}
	first, then := offsets(m.zone, wall)
	if wall-then > clock-now {
		then = first
	}
	return (clock - now) - (wall - then)
}

func distance(a, b int64) int64 { return max(a-b, b-a) }
