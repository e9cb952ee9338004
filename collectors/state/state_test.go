package state

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"oncewatch/collectors/handled"
	"oncewatch/collectors/postgres/cells"
	"oncewatch/collectors/retention"
)

// sample is a small store with one of everything.
func sample() *Store {
	h := handled.New()
	h.Present(handled.Count{Min: 5, Max: 20, N: 9})
	h.Looks()
	h.Lose(handled.Range{First: 5, Last: 9, Least: 4, Most: 5, Newest: 77})
	place := retention.Place{Group: "g", Topic: "t", Partition: 3}
	return &Store{
		Saved: time.Unix(1, 2).Local(),
		Ledger: &cells.Kept{
			Table: "table 1 of database x", Clock: 1_700_000_000_000_000, Fine: 5, Width: 60,
			Series: []*cells.Series{
				{Key: cells.Key{Group: "g", Topic: "t"}, Inserted: 7, Pruned: 3, Evidence: cells.Evidence{Markers: 1, Polls: 2, Observed: 9, At: 4}, PrunedTo: 4, Handled: map[int64]*handled.Offsets{3: h}},
				{Key: cells.Key{Group: "g"}, PrunedTo: cells.MinTime, Handled: map[int64]*handled.Offsets{}},
			},
			Buckets: []*cells.Bucket{
				{Lo: cells.MinTime, Hi: cells.MinTime + 1, Cells: []cells.Cell{{Series: 0, Count: 1, Min: cells.MinTime, Max: cells.MinTime}}},
				{Lo: -60, Hi: 0, Cells: []cells.Cell{{Series: 0, Count: 4, Min: -3, Max: -1, Offsets: []cells.Offsets{{Partition: 0, Min: 2, Max: 9, N: 3}, {Partition: 3, Min: 1, Max: 1, N: 1}}}, {Series: 1, Count: 2, Min: -2, Max: -2}}},
				{Lo: cells.MaxTime - 1, Hi: cells.MaxTime, Cells: []cells.Cell{{Series: 1, Count: 1, Min: cells.MaxTime, Max: cells.MaxTime}}},
			},
		},
		Compared: &retention.Kept{
			Database: "x",
			Watched: &retention.Watched{
				Identity: "table 1 of database x", Cluster: "c", At: time.Unix(0, 5).Local(), Whole: true,
				Last:   map[retention.Place]int64{place: 21},
				Blind:  map[retention.Place][]retention.Span{place: {{From: 0, To: 21}}, {Group: "new", Topic: "t"}: nil},
				Topics: map[string]retention.Topic{"t": {ID: [16]byte{1, 2}, Anew: time.Unix(3, 0).Local(), Unseen: true}},
			},
			Times: []*retention.Times{{Group: "g", From: time.Unix(9, 9).Local(), Parts: map[retention.Log]*retention.Seen{{Topic: "t", Partition: 1}: {First: 1, Last: 2, Replay: 3}}}},
		},
	}
}

func open(t testing.TB) *Dir {
	t.Helper()
	d, err := Open(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// What is written is read again, all of it.
func TestWhatIsWrittenIsReadAgain(t *testing.T) {
	d := open(t)
	for _, want := range []*Store{sample(), {Ledger: sample().Ledger}} {
		if err := d.Write("markers", want.Encode()); err != nil {
			t.Fatal(err)
		}
		body, err := d.Read("markers")
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(body)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(plain(got), plain(want)) {
			t.Errorf("read\n%s\nwritten\n%s", plain(got), plain(want))
		}
	}
	if body, err := d.Read("another"); body != nil || err != nil {
		t.Errorf("%v, %v of a file that is not there", body, err)
	}
}

// plain writes down what is exported.
func plain(s *Store) string {
	var b strings.Builder
	for _, one := range s.Ledger.Series {
		fmt.Fprintf(&b, "%+v", one.Key)
		fmt.Fprint(&b, one.Inserted, one.Pruned, one.Evidence, one.PrunedTo)
		for p, h := range one.Handled {
			fmt.Fprint(&b, p, h.From, h.To, h.Looked, h.Gone, h.Unseen)
		}
	}
	for _, one := range s.Ledger.Buckets {
		fmt.Fprintf(&b, "%+v", *one)
	}
	fmt.Fprint(&b, s.Saved, s.Ledger.Table, s.Ledger.Clock, s.Ledger.Fine, s.Ledger.Width)
	if c := s.Compared; c != nil {
		fmt.Fprintf(&b, "%+v", *c.Watched)
		for _, one := range c.Times {
			fmt.Fprint(&b, one.Group, one.Topic, one.From, one.Gone)
			for p, seen := range one.Parts {
				fmt.Fprintf(&b, "%+v %+v", p, *seen)
			}
		}
	}
	return b.String()
}

// A bit that is flipped at any byte, and a file that is cut at any byte, is
// noticed.
func TestDamageIsNoticed(t *testing.T) {
	d := open(t)
	body := sample().Encode()
	good := append(wrap(body), body...)
	for i := range good {
		for bit := range 8 {
			bad := bytes.Clone(good)
			bad[i] ^= 1 << bit
			if _, err := unwrap(bad); err == nil {
				t.Fatalf("byte %d, bit %d flipped: read", i, bit)
			}
		}
		if _, err := unwrap(good[:i]); err == nil {
			t.Fatalf("cut at byte %d: read", i)
		}
	}
	if _, err := unwrap(append(good, 0)); err == nil {
		t.Error("a byte more: read")
	}
	if err := os.WriteFile(d.file("markers"), good[1:], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Read("markers"); err == nil {
		t.Error("a file without its first byte: read")
	}
	aside, err := d.SetAside("markers")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(aside); err != nil {
		t.Error(err)
	}
	if body, err := d.Read("markers"); body != nil || err != nil {
		t.Errorf("%d bytes, %v read after it was set aside", len(body), err)
	}
}

// A file of a later version says so.
func TestALaterVersionIsNotRead(t *testing.T) {
	body := sample().Encode()
	head := wrap(body)
	head[len(magic)]++
	if _, err := unwrap(append(head, body...)); err == nil || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("error %v", err)
	}
}

// A body with a right checksum that nobody wrote ends in an error or in a store
// that can be written and read again, and never in a panic.
func FuzzDecode(f *testing.F) {
	f.Add(sample().Encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, body []byte) {
		s, err := Decode(body)
		if err != nil {
			return
		}
		again, err := Decode(s.Encode())
		if err != nil {
			t.Fatalf("%v of what was read from %x", err, body)
		}
		if len(again.Ledger.Buckets) != len(s.Ledger.Buckets) {
			t.Fatal("another number of buckets")
		}
	})
}

// Two processes do not share a folder; the lock goes with the process.
func TestAFolderBelongsToOneProcess(t *testing.T) {
	d := open(t)
	if _, err := Open(d.path); !errors.Is(err, ErrInUse) {
		t.Errorf("error %v, want that it is in use", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Open(d.path)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}

// A save that fails leaves the last one, and nothing else.
func TestASaveThatFails(t *testing.T) {
	if os.Getuid() == 0 && runtime.GOOS != "linux" {
		t.Skip("root writes everywhere")
	}
	d := open(t)
	if err := d.Write("markers", []byte("first")); err != nil {
		t.Fatal(err)
	}
	// Something is in the way of the temporary file.
	if err := os.Mkdir(d.file("markers")+".new", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := d.Write("markers", []byte("second")); err == nil {
		t.Error("written")
	}
	if body, err := d.Read("markers"); string(body) != "first" || err != nil {
		t.Errorf("%q, %v: want the first", body, err)
	}
	// What a process left that was killed amid a save.
	if err := os.Remove(d.file("markers") + ".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.file("markers")+".new", []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if body, err := d.Read("markers"); string(body) != "first" || err != nil {
		t.Errorf("%q, %v: want the first", body, err)
	}
	if err := d.Write("markers", []byte("third")); err != nil {
		t.Error(err)
	}
}

// million is a ledger of a million cells.
func million() *Store {
	k := &cells.Kept{Table: "t", Fine: 5_000_000, Width: 60_000_000}
	for i := range 100 {
		k.Series = append(k.Series, &cells.Series{Key: cells.Key{Group: fmt.Sprint("group-", i), Topic: "payments"}})
	}
	start := time.Date(2026, 8, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	for b := range int64(10_000) {
		lo := start + b*k.Width
		bucket := &cells.Bucket{Lo: lo, Hi: lo + k.Width}
		for s := range int32(100) {
			c := cells.Cell{Series: s, Count: 240, Min: lo + 123_456, Max: lo + 59_876_543}
			for p := range int64(2) {
				at := 100_000_000 + b*120
				c.Offsets = append(c.Offsets, cells.Offsets{Partition: p, Min: at, Max: at + 119, N: 120})
			}
			bucket.Cells = append(bucket.Cells, c)
		}
		k.Buckets = append(k.Buckets, bucket)
	}
	return &Store{Ledger: k}
}

// At most 100 bytes a cell.
func TestSize(t *testing.T) {
	body := million().Encode()
	if n := len(body) / 1_000_000; n > 100 {
		t.Errorf("%d bytes a cell", n)
	} else {
		t.Logf("%.1f bytes a cell of two partitions", float64(len(body))/1e6)
	}
}

// BenchmarkSave writes a million cells, encoded and synced.
func BenchmarkSave(b *testing.B) {
	d, s := open(b), million()
	for b.Loop() {
		if err := d.Write("markers", s.Encode()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkEncode leaves the disk out.
func BenchmarkEncode(b *testing.B) {
	s := million()
	for b.Loop() {
		s.Encode()
	}
}

// BenchmarkLoad reads them again.
func BenchmarkLoad(b *testing.B) {
	d := open(b)
	if err := d.Write("markers", million().Encode()); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		body, err := d.Read("markers")
		if err != nil {
			b.Fatal(err)
		}
		if _, err := Decode(body); err != nil {
			b.Fatal(err)
		}
	}
}
