// Package logsample tells of a sample of a consumer's log how many of its lines
// about events say which event, which group and which position. Nothing of the
// lines is kept or repeated but the names of groups and topics.
package logsample

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-logfmt/logfmt"
)

// Bounds of a sample.
const (
	maxLine  = 64 << 10 // bytes; longer lines are counted, and not read
	maxLines = 1_000_000
	maxKeys  = 1_000 // groups and topics that are told apart
	maxDepth = 4     // of JSON, in which a field is looked for
)

// Key is a consumer group on a topic; either may be empty, where lines do not
// say it.
type Key struct{ Group, Topic string }

// Count is what lines about events carry.
type Count struct {
	Lines int64
	// NoEventID and NoPosition are lines without event_id, or without one of
	// topic, partition and offset.
	NoEventID, NoPosition int64
}

// Sample is what was read.
type Sample struct {
	// Lines are all lines, Structured those in JSON or logfmt, TooLong those
	// that were not read.
	Lines, Structured, TooLong int64
	// Cut says that the sample goes on beyond what was read.
	Cut bool
	// Events are the lines about events.
	Events map[Key]Count
}

// Read reads a sample to its end, or as many lines as are bounded; its memory is
// bounded too.
func Read(r io.Reader) (*Sample, error) { return read(r, maxLines) }

func read(r io.Reader, most int64) (*Sample, error) {
	s := &Sample{Events: map[Key]Count{}}
	in := bufio.NewReaderSize(r, maxLine)
	for {
		line, err := in.ReadSlice('\n')
		long := errors.Is(err, bufio.ErrBufferFull)
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = in.ReadSlice('\n')
		}
		line = bytes.TrimSpace(line)
		switch {
		case long:
			s.Lines++
			s.TooLong++
		case len(line) > 0:
			s.Lines++
			s.line(line)
		}
		switch {
		case errors.Is(err, io.EOF):
			return s, nil
		case err != nil:
			return nil, fmt.Errorf("read the sample of the log: %w", err)
		case s.Lines >= most:
			s.Cut = true
			return s, nil
		}
	}
}

// fields are what is looked for in a line.
type fields map[string]string

var wanted = map[string]bool{"event_id": true, "consumer_group": true, "topic": true, "partition": true, "offset": true, "outcome": true}

func (s *Sample) line(line []byte) {
	f, ok := fromJSON(line)
	if !ok {
		f, ok = fromLogfmt(line)
	}
	if !ok {
		return
	}
	s.Structured++
	if !f.aboutEvent() {
		return
	}
	k := Key{f["consumer_group"], f["topic"]}
	if _, ok := s.Events[k]; !ok && len(s.Events) >= maxKeys {
		return
	}
	c := s.Events[k]
	c.Lines++
	if f["event_id"] == "" {
		c.NoEventID++
	}
	if f["topic"] == "" || f["partition"] == "" || f["offset"] == "" {
		c.NoPosition++
	}
	s.Events[k] = c
}

// aboutEvent says whether a line is about one event: it names an event, says how
// one ended, or gives the position of a record.
func (f fields) aboutEvent() bool {
	return f["event_id"] != "" || f["outcome"] == "processed" || f["outcome"] == "duplicate" || f["offset"] != "" && (f["partition"] != "" || f["topic"] != "")
}

// fromJSON reads a line that is an object, perhaps behind what a collector of
// logs put in front (a time, a pod).
func fromJSON(line []byte) (fields, bool) {
	start := bytes.IndexByte(line, '{')
	if start < 0 || line[len(line)-1] != '}' {
		return nil, false
	}
	d := json.NewDecoder(bytes.NewReader(line[start:]))
	d.UseNumber()
	var object map[string]any
	if d.Decode(&object) != nil {
		return nil, false
	}
	f := fields{}
	f.take(object, maxDepth)
	return f, true
}

// take takes fields from an object and from those in it (mdc, fields, context);
// the outer ones win.
func (f fields) take(object map[string]any, depth int) {
	for name, v := range object {
		if !wanted[name] {
			continue
		}
		if _, ok := f[name]; ok {
			continue
		}
		switch v := v.(type) {
		case string:
			f[name] = v
		case json.Number:
			f[name] = v.String()
		}
	}
	if depth == 0 {
		return
	}
	for _, v := range object {
		if inner, ok := v.(map[string]any); ok {
			f.take(inner, depth-1)
		}
	}
}

// fromLogfmt reads a line of key=value pairs, with or without words between.
func fromLogfmt(line []byte) (fields, bool) {
	if !bytes.ContainsRune(line, '=') {
		return nil, false
	}
	d := logfmt.NewDecoder(bytes.NewReader(line))
	f, pairs := fields{}, 0
	for d.ScanRecord() {
		for d.ScanKeyval() {
			if d.Value() == nil {
				continue
			}
			pairs++
			if name := string(d.Key()); wanted[name] {
				f[name] = strings.Clone(string(d.Value()))
			}
		}
	}
	return f, pairs > 0 && d.Err() == nil
}
