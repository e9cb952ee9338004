package collectors

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"oncewatch/collectors/kafka"
	"oncewatch/collectors/postgres"
	"oncewatch/collectors/replay"
)

// ReplayOptions say what would be reset, and how it is looked at.
type ReplayOptions struct {
	Group, Topic string // an empty topic: all that the group has offsets on
	To           replay.Target
	// Database is the label of the store whose markers count; needed where
	// several have markers of the group.
	Database string

	// Verify reads the records between target and offsets; the rest is of that.
	Verify    bool
	EventID   replay.EventID
	IDFrom    string
	RateLimit float64
	Progress  func(replay.Progress)
}

// Replay tells what a reset of a group's offsets would apply twice, by a look
// of its own. It resets nothing.
func Replay(ctx context.Context, c Config, o ReplayOptions, log *slog.Logger) (*replay.Answer, error) {
	if !o.Verify {
		return nil, errors.New("--verify: only what the records themselves tell is told yet: set it")
	}
	// The group that was asked about is looked at, whatever is exported.
	c.Kafka.Group, c.Kafka.GroupExclude, c.Kafka.Topic, c.Kafka.TopicExclude = "", "", "", ""
	c.Kafka.MaxGroups = 1 << 20
	e, err := New(c, log, nil)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	if err := e.groups.Once(ctx); err != nil {
		return nil, err
	}
	if err := e.topics.Once(ctx); err != nil {
		return nil, err
	}
	groups, _ := latest[*kafka.Groups](e.groups)
	topics, _ := latest[*kafka.Topics](e.topics)
	a := &replay.Answer{Group: o.Group, To: o.To.String(), At: e.now().UTC()}
	if a.Topics, a.Warnings, err = replay.Start(o.Group, o.Topic, groups, topics); err != nil {
		return nil, err
	}
	warnings, err := o.To.Place(ctx, e.kafka, a.Topics)
	if err != nil {
		return nil, err
	}
	a.Warnings = append(a.Warnings, warnings...)
	return a, e.verify(ctx, a, o)
}

// verify completes the answer from the records themselves.
func (e *Exporter) verify(ctx context.Context, a *replay.Answer, o ReplayOptions) error {
	lookups, err := e.lookups(ctx, o)
	if err != nil {
		return err
	}
	a.Database, a.Source = lookups[0].Database(), "every record and its marker"
	v := replay.Verifier{
		Read: func(ctx context.Context, topic string, spans []kafka.Span) (replay.Records, error) {
			return e.kafka.Read(ctx, topic, spans)
		},
		EventID: o.EventID, IDFrom: o.IDFrom, RateLimit: o.RateLimit, Progress: o.Progress, Now: e.now,
	}
	for _, l := range lookups {
		v.Markers = append(v.Markers, l)
	}
	return v.Verify(ctx, a)
}

// lookups are into the one set of markers that the group has.
func (e *Exporter) lookups(ctx context.Context, o ReplayOptions) ([]*postgres.Lookup, error) {
	found := map[string][]*postgres.Lookup{}
	var databases, looked []string
	for _, s := range e.stores {
		l, err := s.Lookup(ctx, o.Group)
		if err != nil {
			return nil, err
		}
		if looked = append(looked, fmt.Sprintf("table %s of database %s", l.Table(), l.Database())); o.Database != "" && l.Database() != o.Database {
			continue
		}
		any, err := l.Any(ctx)
		if err != nil {
			return nil, err
		}
		if any && !slices.Contains(databases, l.Database()) {
			databases = append(databases, l.Database())
		}
		found[l.Database()] = append(found[l.Database()], l)
	}
	switch {
	case len(found) == 0:
		return nil, fmt.Errorf("--database: no store is named %s; looked at %s", o.Database, strings.Join(looked, ", "))
	case len(databases) == 0:
		return nil, fmt.Errorf("no marker of group %s is left in %s: if its markers are elsewhere, see --postgres.*; if all were deleted, a reset applies every record again", o.Group, strings.Join(looked, ", "))
	case len(databases) > 1:
		return nil, errors.New("several stores have markers of group " + o.Group + ": say which with --database=" + strings.Join(databases, " or --database="))
	}
	return found[databases[0]], nil
}
