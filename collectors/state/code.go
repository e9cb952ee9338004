package state

import (
	"encoding/binary"
	"errors"
	"math"
	"time"
)

// writer appends numbers and names to a body. A name is written once.
type writer struct {
	b     []byte
	names map[string]uint64
}

func (w *writer) uint(v uint64) { w.b = binary.AppendUvarint(w.b, v) }
func (w *writer) int(v int64)   { w.b = binary.AppendVarint(w.b, v) }

func (w *writer) bool(v bool) {
	if v {
		w.b = append(w.b, 1)
	} else {
		w.b = append(w.b, 0)
	}
}

func (w *writer) string(s string) {
	if i, ok := w.names[s]; ok {
		w.uint(i + 1)
		return
	}
	if w.names == nil {
		w.names = map[string]uint64{}
	}
	w.names[s] = uint64(len(w.names))
	w.uint(0)
	w.uint(uint64(len(s)))
	w.b = append(w.b, s...)
}

// time is in nanoseconds since 1970; the zero time is the smallest number.
func (w *writer) time(t time.Time) {
	if t.IsZero() {
		w.int(math.MinInt64)
	} else {
		w.int(t.UnixNano())
	}
}

// reader reads them again. After the first fault everything is 0.
type reader struct {
	b     []byte
	names []string
	err   error
}

var errMalformed = errors.New("it is malformed")

func (r *reader) fail() { r.b, r.err = nil, errMalformed }

func (r *reader) uint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) int() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

// count is the length of a list: what each of its members takes at least bounds
// it.
func (r *reader) count() int {
	n := r.uint()
	if n > uint64(len(r.b)) {
		r.fail()
		return 0
	}
	return int(n)
}

func (r *reader) bool() bool {
	if len(r.b) == 0 || r.b[0] > 1 {
		r.fail()
		return false
	}
	v := r.b[0] == 1
	r.b = r.b[1:]
	return v
}

func (r *reader) string() string {
	if i := r.uint(); i > uint64(len(r.names)) {
		r.fail()
		return ""
	} else if i > 0 {
		return r.names[i-1]
	}
	n := r.count()
	if r.err != nil {
		return ""
	}
	s := string(r.b[:n])
	r.b = r.b[n:]
	r.names = append(r.names, s)
	return s
}

func (r *reader) time() time.Time {
	n := r.int()
	if n == math.MinInt64 || r.err != nil {
		return time.Time{}
	}
	return time.Unix(0, n)
}
