package logsample

import (
	"fmt"
	"io"
	"maps"
	"strings"
	"testing"
)

// Lines of JSON, of logfmt, behind a collector's prefix and with nested fields
// are read alike; others are counted and left alone.
func TestRead(t *testing.T) {
	s, err := Read(strings.NewReader(`{"msg":"handled","event_id":"e","consumer_group":"g","topic":"t","partition":0,"offset":7}
[pod/a/b] 2026-01-02T03:04:05Z {"message":"handled","mdc":{"event_id":"e","consumer_group":"g","topic":"t","partition":"1","offset":"0"}}
time=2026-01-02T03:04:05Z level=INFO msg="handled it" event_id=e consumer_group=g topic=t partition=0 offset=8

{"msg":"handled","consumer_group":"g","topic":"t","partition":0,"offset":9}
{"msg":"handled","event_id":"e","consumer_group":"g","topic":"t"}
level=INFO msg=duplicate outcome=duplicate topic=t
{"msg":"partitions assigned","consumer_group":"g","partitions":{"t":[0,1]}}
level=INFO msg=starting version=1
java.lang.IllegalStateException: secret
	at a.b.C(D.java:1)
{"broken": 
`))
	if err != nil {
		t.Fatal(err)
	}
	want := map[Key]Count{
		{"g", "t"}: {Lines: 5, NoEventID: 1, NoPosition: 1},
		{"", "t"}:  {Lines: 1, NoEventID: 1, NoPosition: 1},
	}
	if !maps.Equal(s.Events, want) {
		t.Errorf("events %+v, want %+v", s.Events, want)
	}
	if s.Lines != 11 || s.Structured != 8 || s.TooLong != 0 || s.Cut {
		t.Errorf("%+v", s)
	}
}

// What never ends, has endless lines or endlessly many groups is bounded.
func TestReadIsBounded(t *testing.T) {
	n := 0
	endless := readerFunc(func(p []byte) (int, error) {
		n++
		return copy(p, fmt.Sprintf("event_id=e consumer_group=g%d topic=t partition=0 offset=1\n", n)), nil
	})
	const most = 5_000
	s, err := read(io.MultiReader(strings.NewReader("event_id="+strings.Repeat("x", 3*maxLine)+"\n"), endless), most)
	if err != nil {
		t.Fatal(err)
	}
	if !s.Cut || s.Lines != most || s.TooLong != 1 || len(s.Events) != maxKeys {
		t.Errorf("%d lines, %d too long, %d groups, cut %t", s.Lines, s.TooLong, len(s.Events), s.Cut)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// A broken pipe is an error and not a short sample.
func TestReadFails(t *testing.T) {
	broken := readerFunc(func([]byte) (int, error) { return 0, io.ErrClosedPipe })
	if _, err := Read(broken); err == nil {
		t.Error("it is read")
	}
}
