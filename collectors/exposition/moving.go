package exposition

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"google.golang.org/protobuf/encoding/protowire"
)

// piece is a stretch of a family: what only a poll changes, ready to be sent,
// or a stretch with ages in it.
type piece struct {
	packed part
	moving *moving
}

// moving is a stretch in which some numbers grow by one each second.
type moving struct {
	fixed []byte
	marks []mark
	at    time.Time // when the numbers were right

	mu     sync.Mutex
	packed part // as it was at from
	from   time.Time
}

// shared is how long an encoded gzip member serves other scrapers too: ages
// are right to a second, and many slow readers hold few copies.
const shared = time.Second

// mark is a number that stands before fixed[at].
type mark struct {
	at    int
	value float64
}

// stretch is how long what stands still must be, within a family that moves,
// to be worth a member of its own.
const stretch = 32 << 10

// block is how much is encoded, or unpacked, at once while it is sent.
const block = 16 << 10

// marked carries through the registry's sorting that a sample ages: its
// timestamp, which the exporter never sends, is set.
type marked struct{ prometheus.Metric }

// Write implements prometheus.Metric.
func (m marked) Write(to *dto.Metric) error {
	to.TimestampMs = new(int64)
	return m.Metric.Write(to)
}

// unmark says which of the family's samples age, and takes the marks off; nil
// where none does.
func unmark(mf *dto.MetricFamily) (moves []bool) {
	for i, m := range mf.Metric {
		if m.TimestampMs == nil {
			continue
		}
		m.TimestampMs = nil
		if moves == nil {
			moves = make([]bool, len(mf.Metric))
		}
		moves[i] = true
	}
	return moves
}

// pieces cuts an encoded family where its ages stand.
func (f form) pieces(text []byte, mf *dto.MetricFamily, moves []bool, at time.Time) []piece {
	if moves == nil {
		return []piece{{packed: f.pack(text)}}
	}
	spans := textSpans
	if f.format.FormatType() == expfmt.TypeProtoDelim {
		spans = protoSpans
	}
	var out []piece
	m := &moving{at: at}
	still := 0 // where what stands still began
	flush := func(end int) {
		if end-still >= stretch {
			if len(m.marks) > 0 {
				out = append(out, piece{moving: m})
				m = &moving{at: at}
			}
			out = append(out, piece{packed: f.pack(text[still:end])})
		} else {
			m.fixed = append(m.fixed, text[still:end]...)
		}
	}
	for i, s := range spans(text, len(mf.Metric)) {
		if !moves[i] {
			continue
		}
		flush(s[0])
		m.marks = append(m.marks, mark{len(m.fixed), mf.Metric[i].GetGauge().GetValue()})
		still = s[1]
	}
	flush(len(text))
	if len(m.marks) > 0 {
		out = append(out, piece{moving: m})
	}
	return out
}

// textSpans is where the value of each of n samples stands: what follows the
// last space of a line that is no comment.
func textSpans(text []byte, n int) [][2]int {
	spans := make([][2]int, 0, n)
	for at := 0; at < len(text); {
		end := at + bytes.IndexByte(text[at:], '\n')
		if end < at {
			end = len(text)
		}
		if text[at] != '#' {
			spans = append(spans, [2]int{at + bytes.LastIndexByte(text[at:end], ' ') + 1, end})
		}
		at = end + 1
	}
	return spans
}

// protoSpans is where the eight bytes of each gauge's value stand in a
// length-delimited io.prometheus.client.MetricFamily: metric (4), gauge (2),
// value (1).
func protoSpans(message []byte, n int) [][2]int {
	spans := make([][2]int, 0, n)
	_, at := protowire.ConsumeVarint(message)
	for at < len(message) {
		begin, end, next, number := field(message, at)
		if at = next; number != 4 {
			continue
		}
		for in := begin; in < end; {
			b, e, next, number := field(message, in)
			if in = next; number == 2 {
				_, e, _, _ = field(message[:e], b)
				spans = append(spans, [2]int{e - 8, e})
			}
		}
	}
	return spans
}

// field is the content of the field that begins at at.
func field(message []byte, at int) (begin, end, next int, number protowire.Number) {
	number, kind, n := protowire.ConsumeTag(message[at:])
	begin = at + n
	next = begin + protowire.ConsumeFieldValue(number, kind, message[begin:])
	if kind == protowire.BytesType {
		_, n = protowire.ConsumeVarint(message[begin:])
		begin += n
	}
	return begin, next, next, number
}

// number appends a value as the format writes it.
type number func(to []byte, v float64) []byte

func (f form) number() number {
	switch f.format.FormatType() {
	case expfmt.TypeProtoDelim:
		return func(to []byte, v float64) []byte { return binary.LittleEndian.AppendUint64(to, math.Float64bits(v)) }
	case expfmt.TypeOpenMetrics:
		return func(to []byte, v float64) []byte {
			begin := len(to)
			if to = strconv.AppendFloat(to, v, 'g', -1, 64); !bytes.ContainsAny(to[begin:], "e.") {
				to = append(to, '.', '0')
			}
			return to
		}
	}
	return func(to []byte, v float64) []byte { return strconv.AppendFloat(to, v, 'g', -1, 64) }
}

// write writes the stretch as it is at now.
func (m *moving) write(w io.Writer, now time.Time, n number) error {
	grown := max(0, now.Sub(m.at).Seconds()) // by the monotonic clock
	buf := make([]byte, 0, block)
	from := 0
	for _, k := range m.marks {
		if len(buf) > block-4096 {
			if _, err := w.Write(buf); err != nil {
				return err
			}
			buf = buf[:0]
		}
		buf = append(buf, m.fixed[from:k.at]...)
		buf = n(buf, k.value+grown)
		from = k.at
	}
	_, err := w.Write(append(buf, m.fixed[from:]...))
	return err
}

// sending is a moving stretch on its way to one scraper. It is encoded only
// when its turn has come: the first byte waits for none of them, and a slow
// reader holds one at most.
type sending struct {
	*moving
	now   time.Time
	form  form
	enter func() (leave func(), ok bool)
}

func (s sending) send(w io.Writer) error {
	if !s.form.gzip {
		return s.write(w, s.now, s.form.number())
	}
	leave, ok := s.enter()
	if !ok {
		return context.Canceled
	}
	packed, err := s.member(s.now, s.form.number())
	leave()
	if err != nil {
		return err
	}
	return packed.send(w)
}

// member is the stretch as a gzip member, as it is at now.
func (m *moving) member(now time.Time, n number) (part, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if age := now.Sub(m.from); m.packed != nil && age >= 0 && age < shared {
		return m.packed, nil
	}
	fresh := &fresh{gzip: true}
	err := m.write(fresh, now, n)
	m.packed, m.from = fresh.take(), now
	return m.packed, err
}

// pack makes what stands still ready to be sent: a gzip member; or, where the
// page is sent plain, blocks that cost a tenth of the memory and next to
// nothing to unpack.
func (f form) pack(text []byte) part {
	if f.gzip {
		var to bytes.Buffer
		w, _ := gzip.NewWriterLevel(&to, gzip.BestSpeed)
		_, _ = w.Write(text) // into a buffer
		_ = w.Close()
		return raw(bytes.Clone(to.Bytes()))
	}
	var b blocks
	scratch := make([]byte, s2.MaxEncodedLen(min(block, len(text))))
	for len(text) > 0 {
		n := min(block, len(text))
		b = append(b, bytes.Clone(s2.Encode(scratch, text[:n])))
		text = text[n:]
	}
	return b
}

// blocks is plain text, packed.
type blocks [][]byte

func (b blocks) send(w io.Writer) error {
	var buf []byte
	for _, one := range b {
		text, err := s2.Decode(buf, one)
		if err != nil {
			return err
		}
		if _, err := w.Write(text); err != nil {
			return err
		}
		buf = text
	}
	return nil
}
