package replay

import "hash/maphash"

// repeats remembers the ids seen lately: at least the last `most`, at most
// twice as many, by a hash of 64 bits each. It holds 16 bytes for each of them
// at most.
type repeats struct {
	seed     maphash.Seed
	now, old idSet
	// dropped says that ids have been forgotten.
	dropped bool
}

// remembered is how many ids are, at least: 16 MiB hold twice as many.
const remembered = 1 << 19

func newRepeats() *repeats {
	return &repeats{seed: maphash.MakeSeed()}
}

// seen says whether an id was seen lately, and remembers it.
func (r *repeats) seen(id string) bool {
	h := max(maphash.String(r.seed, id), 1) // 0 is an empty place
	if r.now.has(h) || r.old.has(h) {
		return true
	}
	if r.now.len == remembered {
		r.dropped = r.dropped || r.old.len > 0
		r.now, r.old = r.old, r.now
		r.now.clear()
	}
	r.now.add(h)
	return false
}

// idSet is a hash table with open places that grows to twice what it holds.
type idSet struct {
	places []uint64
	len    int
}

func (s *idSet) at(h uint64) int {
	mask := uint64(len(s.places) - 1)
	for i := h & mask; ; i = (i + 1) & mask {
		if s.places[i] == h || s.places[i] == 0 {
			return int(i)
		}
	}
}

func (s *idSet) has(h uint64) bool { return s.len > 0 && s.places[s.at(h)] == h }

func (s *idSet) add(h uint64) {
	if 2*s.len >= len(s.places) {
		was := s.places
		s.places = make([]uint64, max(1024, 2*len(was)))
		for _, old := range was {
			if old != 0 {
				s.places[s.at(old)] = old
			}
		}
	}
	s.places[s.at(h)] = h
	s.len++
}

func (s *idSet) clear() {
	clear(s.places)
	s.len = 0
}
