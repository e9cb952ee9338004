package retention

import (
	"maps"
	"time"

	"oncewatch/collectors/postgres"
)

// Kept is what a source knows of one store and cannot find out again.
type Kept struct {
	// Database is the store's label.
	Database string
	Watched  *Watched
	// Times are of a table without offsets.
	Times []*Times
}

// Times is what is known of a series of markers that carry no offset.
type Times struct {
	Group, Topic string
	// From is the oldest marker of the first complete look, Gone the newest that
	// was seen to be pruned, both by our clock.
	From, Gone time.Time
	Parts      map[Log]*Seen
}

// Keep copies what is known of a store; nil where it was never compared. It
// waits for a poll that runs.
func (s *Source) Keep(database string) *Kept {
	s.running.Lock()
	defer s.running.Unlock()
	w := s.watch[database]
	if w == nil {
		return nil
	}
	c := *w
	c.Last, c.Blind, c.Topics = maps.Clone(w.Last), maps.Clone(w.Blind), maps.Clone(w.Topics)
	k := &Kept{Database: database, Watched: &c}
	for key, t := range s.times {
		if key.database != database {
			continue
		}
		one := &Times{Group: key.group, Topic: key.topic, From: t.from, Gone: t.gone, Parts: map[Log]*Seen{}}
		for p, seen := range t.parts {
			copied := *seen
			one.Parts[p] = &copied
		}
		k.Times = append(k.Times, one)
	}
	return k
}

// Restore takes up what another source kept. Call it before the first poll.
// What is of another table than it finds is forgotten then.
func (s *Source) Restore(k *Kept) {
	s.running.Lock()
	defer s.running.Unlock()
	s.watch[k.Database] = k.Watched
	for _, t := range k.Times {
		s.times[timesKey{k.Database, t.Group, t.Topic}] = &times{from: t.From, gone: t.Gone, parts: t.Parts}
	}
}

// forgetOthers forgets what was seen by time of a store's earlier table.
func (s *Source) forgetOthers(stores []*postgres.Markers) {
	for _, m := range stores {
		if w := s.watch[m.Database]; w == nil || !m.Ready || w.Identity == m.Identity {
			continue
		}
		maps.DeleteFunc(s.times, func(key timesKey, _ *times) bool { return key.database == m.Database })
	}
}
