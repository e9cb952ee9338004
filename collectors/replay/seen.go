package replay

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"oncewatch/collectors/handled"
	"oncewatch/collectors/kafka"
	"oncewatch/collectors/number"
	"oncewatch/collectors/retention"
)

// Question says what would be reset.
type Question struct {
	Group, Topic string // an empty topic: all that the group has offsets on
	To           string // as ParseTarget reads it
	// Database is the label of the store whose markers count; needed where
	// several have markers of the group.
	Database string
}

// QuestionOf reads a question from an address's query.
func QuestionOf(v url.Values) (Question, error) {
	q := Question{Group: v.Get("group"), Topic: v.Get("topic"), To: v.Get("to"), Database: v.Get("database")}
	if q.Group == "" {
		return q, bad("group", "it is missing: %s?group=NAME&to=earliest", Path)
	}
	return q, nil
}

// Values is the question as an address's query.
func (q Question) Values() url.Values {
	v := url.Values{"group": {q.Group}}
	for name, value := range map[string]string{"topic": q.Topic, "to": q.To, "database": q.Database} {
		if value != "" {
			v.Set(name, value)
		}
	}
	return v
}

// ErrWaiting says that something has not been read yet, or not lately.
var ErrWaiting = errors.New("not everything has been read lately: see the sources on the page")

// Seen is what an exporter has seen: nil where it has not yet.
type Seen struct {
	Groups    *kafka.Groups
	Topics    *kafka.Topics
	Retention *retention.Snapshot
	// Databases are the labels of the stores.
	Databases []string
	// Silent says that a store has not answered: it may have markers of any
	// group.
	Silent bool
	// Whole says that the records will be read: where Kafka keeps no offset of
	// the group, to the log's end.
	Whole bool
}

// Begin is where the group stands and where it would be set; nothing is judged
// yet.
func (s Seen) Begin(ctx context.Context, q Question, lister OffsetLister, now time.Time) (*Answer, error) {
	target, err := ParseTarget(q.To, now)
	if err != nil {
		return nil, err
	}
	if s.Groups == nil || s.Topics == nil {
		return nil, ErrWaiting
	}
	groups, gone := s.judged(q.Group)
	if s.Whole {
		groups = s.whole(q)
	}
	a := &Answer{Group: q.Group, To: target.String(), At: groups.At.UTC()}
	if a.Topics, a.Warnings, err = Start(q.Group, q.Topic, groups, s.Topics); err != nil {
		return nil, err
	}
	for _, t := range a.Topics {
		for i := range t.Partitions {
			p := &t.Partitions[i]
			p.CommitGone = !hasCommit(s.Groups.Group(q.Group), t.Topic, p.Partition)
		}
	}
	warnings, err := target.Place(ctx, lister, a.Topics)
	a.Warnings = slices.Concat(a.Warnings, gone, warnings)
	return a, err
}

// Answer tells what a reset would apply twice, by what was seen.
func (s Seen) Answer(ctx context.Context, q Question, lister OffsetLister, now time.Time) (*Answer, error) {
	if s.Retention == nil || s.Silent && q.Database == "" {
		return nil, ErrWaiting
	}
	a, err := s.Begin(ctx, q, lister, now)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, one := range s.Retention.Series {
		if one.Group == q.Group && !slices.Contains(found, one.Database) {
			found = append(found, one.Database)
		}
	}
	if a.Database, err = q.Store(found, s.Databases); err != nil {
		return nil, err
	}
	a.Source = "what the exporter has seen"
	a.Know(func(topic string, partition int32) (Known, bool) {
		if one := s.Retention.Find(a.Database, q.Group, topic); one != nil {
			for _, p := range one.Partitions {
				if p.Partition == partition {
					return knownOf(p), true
				}
			}
		}
		return Known{}, false
	})
	return a, a.SafeTimes(ctx, lister)
}

// knownOf is what retention knows of a partition.
func knownOf(p *retention.Partition) Known {
	if p.Unprotected.OK {
		return Known{Gone: p.Gone, Unverified: p.Unseen, Why: p.Why}
	}
	return Known{Why: p.Why, Unverified: []handled.Range{{First: 0, Last: p.Committed - 1, Most: p.Committed}}}
}

// judged are the groups with the commits by which retention has judged: those
// of its poll, and where they are gone, up to where the group had come.
func (s Seen) judged(group string) (*kafka.Groups, []string) {
	if s.Retention == nil {
		return s.Groups, nil
	}
	var warnings []string
	by := kafka.Group{Name: group, Readable: true}
	if g := s.Groups.Group(group); g != nil {
		by = *g
		by.Topics = slices.Clone(g.Topics)
	}
	for _, one := range s.Retention.Series {
		if one.Group != group {
			continue
		}
		t := by.Topic(one.Topic)
		if t == nil {
			by.Topics = append(by.Topics, kafka.GroupTopic{Topic: one.Topic})
			t = &by.Topics[len(by.Topics)-1]
		}
		t.Partitions = slices.Clone(t.Partitions)
		gone := 0
		for _, p := range one.Partitions {
			i := slices.IndexFunc(t.Partitions, func(c kafka.GroupPartition) bool { return c.Partition == p.Partition })
			switch {
			case i >= 0:
				t.Partitions[i].Committed = min(t.Partitions[i].Committed, p.Committed)
			case p.CommitGone:
				gone++
				t.Partitions = append(t.Partitions, kafka.GroupPartition{Partition: p.Partition, Committed: p.Committed})
			}
		}
		if gone > 0 {
			warnings = append(warnings, fmt.Sprintf("Kafka keeps no offsets of group %s on %s of %s: it begins there by its reset policy, and is judged up to the highest offset it has handled.", group, number.Of(int64(gone), "partition"), one.Topic))
		}
	}
	by.Topics = slices.DeleteFunc(by.Topics, func(t kafka.GroupTopic) bool { return len(t.Partitions) == 0 })
	return s.with(&by), warnings
}

// with are the groups with another in the place of the one of its name.
func (s Seen) with(by *kafka.Group) *kafka.Groups {
	out := *s.Groups
	out.Groups = slices.Clone(out.Groups)
	if i := slices.IndexFunc(out.Groups, func(g *kafka.Group) bool { return g.Name == by.Name }); i >= 0 {
		out.Groups[i] = by
	} else if len(by.Topics) > 0 {
		out.Groups = append(out.Groups, by)
	}
	return &out
}

// whole are the groups with the one asked about at the log's end wherever Kafka
// keeps no offset of it on a topic.
func (s Seen) whole(q Question) *kafka.Groups {
	g := s.Groups.Group(q.Group)
	if g == nil || !g.Readable {
		return s.Groups
	}
	by := *g
	by.Topics = slices.Clone(g.Topics)
	if q.Topic != "" && by.Topic(q.Topic) == nil {
		by.Topics = append(by.Topics, kafka.GroupTopic{Topic: q.Topic})
	}
	for i := range by.Topics {
		t := &by.Topics[i]
		t.Partitions = slices.Clone(t.Partitions)
		log := s.Topics.Topics[t.Topic]
		if log == nil {
			continue
		}
		for id, bounds := range log.Partitions {
			empty := bounds.Start.OK && bounds.End.OK && bounds.Start.Value >= bounds.End.Value
			if !empty && !hasCommit(g, t.Topic, int32(id)) {
				t.Partitions = append(t.Partitions, kafka.GroupPartition{Partition: int32(id), Committed: bounds.End.Value})
			}
		}
	}
	by.Topics = slices.DeleteFunc(by.Topics, func(t kafka.GroupTopic) bool { return len(t.Partitions) == 0 })
	return s.with(&by)
}

// hasCommit says whether Kafka keeps an offset of the group on a partition.
func hasCommit(g *kafka.Group, topic string, partition int32) bool {
	if g == nil {
		return false
	}
	t := g.Topic(topic)
	return t != nil && slices.ContainsFunc(t.Partitions, func(p kafka.GroupPartition) bool { return p.Partition == partition })
}

// Store is the one of the stores looked at that the question is about, of those
// found to have markers of the group.
func (q Question) Store(found, looked []string) (string, error) {
	switch {
	case q.Database != "" && !slices.Contains(looked, q.Database):
		return "", bad("database", "no store is named %s; there is %s", q.Database, strings.Join(looked, ", "))
	case q.Database != "" && slices.Contains(found, q.Database):
		return q.Database, nil
	case q.Database != "" || len(found) == 0:
		if q.Database != "" {
			looked = []string{q.Database}
		}
		return "", bad("group", "no marker of group %s was found in %s: if they are elsewhere, see --postgres.*; if all were deleted, a reset applies every record again", q.Group, strings.Join(looked, ", "))
	case len(found) > 1:
		return "", bad("database", "several stores have markers of group %s: say which, %s", q.Group, strings.Join(found, " or "))
	}
	return found[0], nil
}
