package produce

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// IDs makes UUIDv7 (RFC 9562) in strictly increasing order: within one
// millisecond the 12 bits after the version count up. That no id is used twice
// in a session can then be asserted by comparing with the last one alone.
type IDs struct {
	now     func() time.Time
	ms      int64
	counter uint16
	last    string
}

// NewIDs takes the time of the ids from a clock.
func NewIDs(now func() time.Time) *IDs { return &IDs{now: now} }

// Next returns a new id.
func (g *IDs) Next() (string, error) {
	if ms := g.now().UnixMilli(); ms > g.ms {
		g.ms, g.counter = ms, 0
	} else if g.counter++; g.counter > 0xfff {
		g.ms, g.counter = g.ms+1, 0
	}
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:8], uint64(g.ms)<<16|0x7000|uint64(g.counter))
	_, _ = rand.Read(id[8:]) // never fails
	id[8] = id[8]&0x3f | 0x80
	s := id.String()
	return s, g.assertNew(s)
}

// assertNew refuses an id that is not newer than the last one.
func (g *IDs) assertNew(id string) error {
	if id <= g.last {
		return fmt.Errorf("event id %s was not made after %s: an id must never be used twice", id, g.last)
	}
	g.last = id
	return nil
}
