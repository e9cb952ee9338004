package state

import (
	"encoding/binary"
	"time"

	"oncewatch/collectors/handled"
	"oncewatch/collectors/postgres/cells"
	"oncewatch/collectors/retention"
)

// Store is what is kept of one store.
type Store struct {
	// Saved is when, by our clock.
	Saved time.Time
	// Ledger is what the ledger knew, Compared what its comparison with the
	// broker did; nil where it had not been compared.
	Ledger   *cells.Kept
	Compared *retention.Kept
}

// Encode writes it down.
func (s *Store) Encode() []byte {
	size := 1 << 16
	for _, b := range s.Ledger.Buckets {
		size += 40 * len(b.Cells) // as a rule
	}
	w := &writer{b: make([]byte, 0, size)}
	w.time(s.Saved)
	w.ledger(s.Ledger)
	w.bool(s.Compared != nil)
	if s.Compared != nil {
		w.compared(s.Compared)
	}
	return w.b
}

// Decode reads it. Its error says that the body is none that Encode writes.
func Decode(body []byte) (*Store, error) {
	r := &reader{b: body}
	s := &Store{Saved: r.time(), Ledger: r.ledger()}
	if r.bool() {
		s.Compared = r.compared()
	}
	if r.err == nil && len(r.b) > 0 {
		r.fail()
	}
	if r.err != nil {
		return nil, r.err
	}
	return s, nil
}

func (w *writer) ledger(k *cells.Kept) {
	w.string(k.Table)
	w.int(k.Clock)
	w.int(k.Fine)
	w.int(k.Width)
	w.uint(uint64(len(k.Series)))
	for _, s := range k.Series {
		w.series(s)
	}
	w.uint(uint64(len(k.Buckets)))
	at, out := int64(0), w.b // here are the millions
	for _, b := range k.Buckets {
		out = binary.AppendVarint(out, b.Lo-at) // may wrap, and wraps back
		out = binary.AppendVarint(out, b.Hi-b.Lo)
		at = b.Lo
		out = binary.AppendUvarint(out, uint64(len(b.Cells)))
		for i := range b.Cells {
			c := &b.Cells[i]
			out = binary.AppendUvarint(out, uint64(c.Series))
			out = binary.AppendVarint(out, c.Count)
			out = binary.AppendVarint(out, c.Min-b.Lo)
			out = binary.AppendVarint(out, c.Max-c.Min)
			out = binary.AppendUvarint(out, uint64(len(c.Offsets)))
			for _, o := range c.Offsets {
				out = binary.AppendVarint(out, o.Partition)
				out = binary.AppendVarint(out, o.Min)
				out = binary.AppendVarint(out, o.Max-o.Min)
				out = binary.AppendVarint(out, o.N)
			}
		}
	}
	w.b = out
}

func (r *reader) ledger() *cells.Kept {
	k := &cells.Kept{Table: r.string(), Clock: r.int(), Fine: r.int(), Width: r.int()}
	if k.Fine <= 0 || k.Width < k.Fine {
		r.fail()
	}
	for range r.count() {
		k.Series = append(k.Series, r.series())
	}
	n := r.count()
	at := int64(0)
	for range n {
		b := &cells.Bucket{}
		b.Lo = at + r.int()
		b.Hi = b.Lo + r.int()
		if last := len(k.Buckets) - 1; b.Hi <= b.Lo || last >= 0 && b.Lo < k.Buckets[last].Hi {
			r.fail()
			break
		}
		at = b.Lo
		b.Cells = make([]cells.Cell, r.count())
		for i := range b.Cells {
			c := &b.Cells[i]
			c.Series = int32(min(r.uint(), uint64(len(k.Series))))
			c.Count = r.int()
			c.Min = b.Lo + r.int()
			c.Max = c.Min + r.int()
			if int(c.Series) >= len(k.Series) || c.Count <= 0 || i > 0 && c.Series <= b.Cells[i-1].Series {
				r.fail()
				break
			}
			if n := r.count(); n > 0 {
				c.Offsets = make([]cells.Offsets, n)
			}
			for j := range c.Offsets {
				o := &c.Offsets[j]
				o.Partition, o.Min = r.int(), r.int()
				o.Max = o.Min + r.int()
				o.N = r.int()
				if o.Max < o.Min || j > 0 && o.Partition <= c.Offsets[j-1].Partition {
					r.fail()
					break
				}
			}
		}
		if r.err != nil {
			break
		}
		k.Buckets = append(k.Buckets, b)
	}
	return k
}

func (w *writer) series(s *cells.Series) {
	w.string(s.Key.Group)
	w.string(s.Key.Topic)
	w.int(s.Inserted)
	w.int(s.Pruned)
	w.int(s.Evidence.Markers)
	w.int(s.Evidence.Polls)
	w.int(s.Evidence.Observed)
	w.int(s.Evidence.At)
	w.int(s.PrunedTo)
	w.uint(uint64(len(s.Handled)))
	for partition, h := range s.Handled {
		w.int(partition)
		w.int(h.From)
		w.int(h.To)
		w.int(h.Looked)
		w.ranges(h.Gone)
		w.ranges(h.Unseen)
	}
}

func (r *reader) series() *cells.Series {
	s := &cells.Series{Key: cells.Key{Group: r.string(), Topic: r.string()}}
	s.Inserted, s.Pruned = r.int(), r.int()
	s.Evidence = cells.Evidence{Markers: r.int(), Polls: r.int(), Observed: r.int(), At: r.int()}
	s.PrunedTo = r.int()
	s.Handled = map[int64]*handled.Offsets{}
	for range r.count() {
		partition, h := r.int(), handled.New()
		h.From, h.To, h.Looked = r.int(), r.int(), r.int()
		h.Gone, h.Unseen = r.ranges(), r.ranges()
		s.Handled[partition] = h
	}
	return s
}

func (w *writer) ranges(list []handled.Range) {
	w.uint(uint64(len(list)))
	at := int64(0)
	for _, x := range list {
		w.int(x.First - at)
		w.int(x.Last - x.First)
		w.int(x.Least)
		w.int(x.Most)
		w.int(x.Newest)
		at = x.First
	}
}

func (r *reader) ranges() (list []handled.Range) {
	at := int64(0)
	for range r.count() {
		x := handled.Range{First: at + r.int()}
		x.Last = x.First + r.int()
		x.Least, x.Most, x.Newest = r.int(), r.int(), r.int()
		if x.First < at || x.Last < x.First || x.Least < 0 || x.Most < x.Least {
			r.fail()
			return nil
		}
		at = x.First
		list = append(list, x)
	}
	return list
}

func (w *writer) compared(k *retention.Kept) {
	w.string(k.Database)
	o := k.Watched
	w.string(o.Identity)
	w.string(o.Cluster)
	w.time(o.At)
	w.bool(o.Whole)
	w.uint(uint64(len(o.Last)))
	for p, committed := range o.Last {
		w.place(p)
		w.int(committed)
	}
	w.uint(uint64(len(o.Blind)))
	for p, spans := range o.Blind {
		w.place(p)
		w.uint(uint64(len(spans)))
		for _, s := range spans {
			w.int(s.From)
			w.int(s.To)
		}
	}
	w.uint(uint64(len(o.Topics)))
	for name, t := range o.Topics {
		w.string(name)
		w.b = append(w.b, t.ID[:]...)
		w.time(t.Anew)
		w.bool(t.Unseen)
	}
	w.uint(uint64(len(k.Times)))
	for _, t := range k.Times {
		w.string(t.Group)
		w.string(t.Topic)
		w.time(t.From)
		w.time(t.Gone)
		w.uint(uint64(len(t.Parts)))
		for p, seen := range t.Parts {
			w.string(p.Topic)
			w.int(int64(p.Partition))
			w.int(seen.First)
			w.int(seen.Last)
			w.int(seen.Replay)
			w.time(seen.ReplayAt)
		}
	}
}

func (r *reader) compared() *retention.Kept {
	k := &retention.Kept{Database: r.string()}
	o := &retention.Watched{Identity: r.string(), Cluster: r.string(), At: r.time(), Whole: r.bool(),
		Last: map[retention.Place]int64{}, Blind: map[retention.Place][]retention.Span{}, Topics: map[string]retention.Topic{}}
	k.Watched = o
	for range r.count() {
		p := r.place()
		o.Last[p] = r.int()
	}
	for range r.count() {
		p := r.place()
		o.Blind[p] = nil
		for range r.count() {
			o.Blind[p] = append(o.Blind[p], retention.Span{From: r.int(), To: r.int()})
		}
	}
	for range r.count() {
		name, t := r.string(), retention.Topic{}
		if n := copy(t.ID[:], r.b); n < len(t.ID) {
			r.fail()
			break
		}
		r.b = r.b[len(t.ID):]
		t.Anew, t.Unseen = r.time(), r.bool()
		o.Topics[name] = t
	}
	for range r.count() {
		t := &retention.Times{Group: r.string(), Topic: r.string(), From: r.time(), Gone: r.time(), Parts: map[retention.Log]*retention.Seen{}}
		for range r.count() {
			p := retention.Log{Topic: r.string(), Partition: int32(r.int())}
			t.Parts[p] = &retention.Seen{First: r.int(), Last: r.int(), Replay: r.int(), ReplayAt: r.time()}
		}
		k.Times = append(k.Times, t)
	}
	return k
}

func (w *writer) place(p retention.Place) {
	w.string(p.Group)
	w.string(p.Topic)
	w.int(int64(p.Partition))
}

func (r *reader) place() retention.Place {
	return retention.Place{Group: r.string(), Topic: r.string(), Partition: int32(r.int())}
}
