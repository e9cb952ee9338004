package collectors

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"oncewatch/collectors/kafka"
	"oncewatch/collectors/poll"
	"oncewatch/collectors/postgres"
	"oncewatch/collectors/replay"
	"oncewatch/collectors/retention"
)

// ReplayLook is how a look of its own is made.
type ReplayLook struct {
	// Verify reads the records between target and offsets, in no group.
	Verify    bool
	EventID   string // as replay.ParseEventID reads it
	RateLimit float64
	Progress  func(replay.Progress)
	// Counting is told how far the markers are counted, 0 to 1.
	Counting func(float64)
}

// Replay tells what a reset of a group's offsets would apply twice, by a look
// of its own. It resets nothing.
func Replay(ctx context.Context, c Config, q replay.Question, look ReplayLook, log *slog.Logger) (*replay.Answer, error) {
	id, err := replay.ParseEventID(look.EventID)
	if err != nil {
		return nil, err
	}
	if _, err := replay.ParseTarget(q.To, time.Now()); err != nil {
		return nil, err
	}
	// The group that was asked about is looked at, whatever is exported.
	c.Kafka.Group, c.Kafka.GroupExclude, c.Kafka.Topic, c.Kafka.TopicExclude = "", "", "", ""
	c.Kafka.MaxGroups = 1 << 20
	c.State.Path = "" // the exporter's own
	e, err := New(c, log, nil)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	named := []string{q.Topic}
	if q.Topic == "" {
		named = nil
	}
	e.kafka.Watch([]string{q.Group}, named) // also without offsets
	for _, p := range []*poll.Poller{e.groups, e.topics} {
		if err := p.Once(ctx); err != nil {
			return nil, err
		}
	}
	// Before a long look: what was asked for may not be there.
	seen := e.seen()
	_, err = seen.Begin(ctx, q, e.kafka, e.now())
	if err != nil && !e.forgotten(ctx, q, err) {
		return nil, err
	}
	if look.Verify {
		if err != nil && q.Topic == "" {
			return nil, &replay.InputError{Parameter: "topic", Text: fmt.Sprintf("Kafka keeps no offsets of group %s any more, though it has markers: say which topic to read", q.Group)}
		}
		seen.Whole = true
		a, err := seen.Begin(ctx, q, e.kafka, e.now())
		if err != nil {
			return nil, err
		}
		lookups, err := e.lookups(ctx, q)
		if err != nil {
			return nil, err
		}
		var names []string
		for _, t := range a.Topics {
			names = append(names, t.Topic)
		}
		if err := e.kafka.MayRead(ctx, names); err != nil {
			return nil, err
		}
		a.Database, a.Source = lookups[0].Database(), "every record and its marker"
		v := replay.Verifier{
			Read: func(ctx context.Context, topic string, spans []kafka.Span) (replay.Records, error) {
				return e.kafka.Read(ctx, topic, spans)
			},
			EventID: id, IDFrom: look.EventID, RateLimit: look.RateLimit, Progress: look.Progress, Now: e.now,
		}
		for _, l := range lookups {
			v.Markers = append(v.Markers, l)
		}
		return a, v.Verify(ctx, a)
	}
	if err = e.settle(ctx, look.Counting); err != nil {
		return nil, err
	}
	a, err := e.Replay(ctx, q)
	if err == nil {
		a.Source = "a first look, which knows nothing of markers that had vanished before"
	}
	return a, err
}

// forgotten says whether a group that Kafka keeps no offsets of, at all or on
// the topic, has markers all the same: its offsets have expired, or were deleted.
func (e *Exporter) forgotten(ctx context.Context, q replay.Question, err error) bool {
	var input *replay.InputError
	if !errors.As(err, &input) || input.Parameter != "group" && input.Parameter != "topic" {
		return false
	}
	lookups, err := e.lookups(ctx, q)
	return err == nil && len(lookups) > 0
}

// settle polls until another poll would add nothing.
func (e *Exporter) settle(ctx context.Context, counting func(float64)) error {
	for e.Once(ctx); ; {
		e.Once(ctx)
		for _, s := range e.stores {
			m, ok := latest[*postgres.Markers](s.markers)
			if !ok {
				if err := s.markers.Status().Err; err != nil {
					return err
				}
				continue
			}
			if counting != nil && !m.Ready {
				counting(m.Progress)
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if e.complete() {
			return nil
		}
		select { // let the server breathe
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// seen is what the replay's answers are made from.
func (e *Exporter) seen() (s replay.Seen) {
	s.Groups, _ = latest[*kafka.Groups](e.groups)
	s.Topics, _ = latest[*kafka.Topics](e.topics)
	s.Retention, _ = latest[*retention.Snapshot](e.compared)
	for _, one := range e.stores {
		m, ok := latest[*postgres.Markers](one.markers)
		if !ok {
			s.Silent = true
			continue
		}
		if !slices.Contains(s.Databases, m.Database) {
			s.Databases = append(s.Databases, m.Database)
		}
	}
	return s
}

// Replay tells what a reset would apply twice, by what has been seen so far.
func (e *Exporter) Replay(ctx context.Context, q replay.Question) (*replay.Answer, error) {
	return e.seen().Answer(ctx, q, e.kafka, e.now())
}

// lookups are into the one set of markers that the group has.
func (e *Exporter) lookups(ctx context.Context, q replay.Question) ([]*postgres.Lookup, error) {
	by := map[string][]*postgres.Lookup{}
	var found, looked []string
	for _, s := range e.stores {
		if named := s.Config().Database; q.Database != "" && named != "" && named != q.Database {
			looked = append(looked, named)
			continue
		}
		l, err := s.Lookup(ctx, q.Group)
		if err != nil {
			return nil, err
		}
		any, err := l.Any(ctx)
		if err != nil {
			return nil, err
		}
		database := l.Database()
		if looked = append(looked, database); any && !slices.Contains(found, database) {
			found = append(found, database)
		}
		by[database] = append(by[database], l)
	}
	database, err := q.Store(found, looked)
	return by[database], err
}
