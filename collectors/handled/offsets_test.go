package handled

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

var (
	histories = flag.Int("property.histories", 60, "how many random histories are driven")
	seed      = flag.Uint64("property.seed", 0, "drive only the history of this seed")
)

// model is the markers of one partition, bucket by bucket, and what was ever
// counted.
type model struct {
	rng     *rand.Rand
	buckets []map[int64]bool // offsets that are present, oldest bucket first
	counted []Count          // at the last look
	seen    map[int64]bool   // at any look
	writes  func(int64) bool // whether handling a record writes a marker
	next    int64
	o       *Offsets
	steps   []string
}

func (m *model) present() map[int64]bool {
	all := map[int64]bool{}
	for _, b := range m.buckets {
		for offset := range b {
			all[offset] = true
		}
	}
	return all
}

// handle passes records from lo to hi: markers where there are none.
func (m *model) handle(lo, hi int64) {
	present, fresh := m.present(), map[int64]bool{}
	for o := lo; o < hi; o++ {
		if m.writes(o) && !present[o] {
			fresh[o] = true
		}
	}
	m.buckets = append(m.buckets, fresh)
}

func (m *model) step() {
	width := m.rng.Int64N(60)
	switch m.rng.IntN(8) {
	default:
		m.steps = append(m.steps, fmt.Sprint("handle ", m.next, "+", width))
		m.handle(m.next, m.next+width)
		m.next += width
	case 0:
		skip := m.rng.Int64N(20)
		m.steps = append(m.steps, fmt.Sprint("skip ", skip))
		m.next += skip
	case 1: // replay, perhaps cut short
		lo := m.rng.Int64N(m.next + 1)
		hi := lo + m.rng.Int64N(m.next-lo+1)
		m.steps = append(m.steps, fmt.Sprint("replay ", lo, "-", hi))
		for at := lo; at < hi; at += 50 {
			m.handle(at, min(at+50, hi))
		}
	case 2: // prune whole buckets, and one in part
		n := m.rng.IntN(len(m.buckets) + 1)
		m.steps = append(m.steps, fmt.Sprint("prune ", n))
		for i := range n {
			m.buckets[i] = map[int64]bool{}
		}
		if n < len(m.buckets) && m.rng.IntN(2) == 0 {
			b := m.buckets[n]
			list := sorted(b)
			for _, o := range list[:m.rng.IntN(len(list)+1)] {
				delete(b, o)
			}
		}
	case 3: // delete here and there
		if len(m.buckets) == 0 {
			return
		}
		b := m.buckets[m.rng.IntN(len(m.buckets))]
		for _, o := range sorted(b) {
			if m.rng.IntN(3) == 0 {
				delete(b, o)
			}
		}
		m.steps = append(m.steps, "delete here and there")
	}
}

func sorted(set map[int64]bool) (list []int64) {
	for o := range set {
		list = append(list, o)
	}
	slices.Sort(list)
	return list
}

func count(set map[int64]bool) (c Count) {
	if list := sorted(set); len(list) > 0 {
		c = Count{Min: list[0], Max: list[len(list)-1], N: int64(len(list))}
	}
	return c
}

// look does what a poll of the ledger does: what came, then what went, and then
// what of the latter is there all the same.
func (m *model) look(first bool) {
	var lost []Range
	for i, b := range m.buckets {
		now := count(b)
		if first {
			if now.N > 0 {
				m.o.Present(now)
			}
		} else {
			var was Count
			if i < len(m.counted) {
				was = m.counted[i]
			}
			went, came := Diff(was, now)
			for _, r := range came {
				m.o.Wrote(r)
			}
			for _, r := range went {
				r.Newest = int64(i)
				lost = append(lost, r)
			}
		}
	}
	if first {
		m.o.Looks()
	}
	for _, r := range lost {
		m.o.Lose(r)
	}
	m.counted = m.counted[:0]
	for _, b := range m.buckets {
		m.counted = append(m.counted, count(b))
	}
	for o := range m.present() {
		m.seen[o] = true
	}
}

func sum(list []Range, lo, hi int64) (least, most int64) {
	for _, r := range list {
		l, n := r.Within(lo, hi)
		least, most = least+l, most+n
	}
	return least, most
}

func (m *model) check(t *testing.T) {
	t.Helper()
	present := m.present()
	for range 20 {
		lo := m.rng.Int64N(m.next + 1)
		hi := lo + m.rng.Int64N(m.next-lo+2)
		if m.rng.IntN(3) == 0 {
			lo, hi = 0, m.next
		}
		var gone, unseen int64
		for o := lo; o < hi; o++ {
			switch {
			case !m.seen[o]:
				unseen++
			case !present[o]:
				gone++
			}
		}
		least, most := sum(m.o.Gone, lo, hi)
		_, never := sum(m.o.Unseen, lo, hi)
		if gone < least || gone > most || unseen > never {
			t.Fatalf("offsets %d to %d: %d gone, said %d to %d; %d never seen, said at most %d\n%v\n%+v", lo, hi, gone, least, most, unseen, never, m.steps, *m.o)
		}
	}
}

// Random histories of one partition against a model that knows every offset:
// the numbers always hold the truth between them, and where every record writes
// a marker they are the truth. Between two looks one thing happens, as rule two
// of the package has it; the first look may come at any time, and later ones
// may start afresh as after a restart.
func TestRandomHistories(t *testing.T) {
	t.Parallel()
	exact, all := 0, 0
	for i := range *histories {
		s := *seed
		if s == 0 {
			s = rand.Uint64()
		}
		rng := rand.New(rand.NewPCG(s, 7))
		m := &model{rng: rng, seen: map[int64]bool{}, o: New()}
		holes := []int64{0, 0, 3, 10, 50}[rng.IntN(5)]
		salt := rng.Int64N(97)
		m.writes = func(o int64) bool { return holes == 0 || (o*2654435761+salt)%holes != 0 }
		for range rng.IntN(20) {
			m.step()
		}
		m.look(true)
		for range 10 + rng.IntN(120) {
			m.step()
			m.look(false)
			if rng.IntN(15) == 0 {
				m.o.Again()
				for _, c := range m.counted {
					if c.N > 0 {
						m.o.Present(c)
					}
				}
				m.o.Looks()
			}
			m.check(t)
			if t.Failed() {
				t.Fatalf("history %d: -property.seed=%d", i, s)
			}
			least, most := sum(m.o.Gone, 0, math.MaxInt64)
			if all++; least == most {
				exact++
			}
		}
		if n := len(m.o.Gone) + len(m.o.Unseen); n > maxGone+maxUnseen+maxAbove+1 {
			t.Fatalf("%d ranges", n)
		}
		if s == *seed {
			break
		}
	}
	t.Logf("the number of vanished markers was exact at %d of %d looks", exact, all)
	if exact < all/3 {
		t.Errorf("exact at %d of %d looks only", exact, all)
	}
}
