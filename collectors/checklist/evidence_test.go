package checklist_test

import (
	"math"
	"slices"
	"time"

	"oncewatch/collectors/checklist"
	"oncewatch/collectors/consumer"
	"oncewatch/collectors/kafka"
	"oncewatch/collectors/postgres"
	"oncewatch/collectors/retention"
)

func finite(v float64) bool { return v >= 0 && !math.IsInf(v, 1) }

func told(f consumer.Figure) bool { return f.Missing == "" && f.Value >= 0 }

// seen says whether the facts hold what an OK of the line rests on. It is
// written without the lines' own code, one case a rule.
func seen(f checklist.Facts, l checklist.Line) bool {
	i := slices.IndexFunc(f.Stores, func(s checklist.Store) bool { return s.Markers != nil && s.Markers.Database == l.Database })
	if i < 0 {
		return false
	}
	s := f.Stores[i]
	var marked *postgres.Series
	for i := range s.Markers.Series {
		if one := &s.Markers.Series[i]; one.Group == l.Group && (one.Topic == l.Topic || one.Topic == "") {
			marked = one
		}
	}
	partitions := func(g *kafka.Groups) []kafka.GroupPartition {
		if g == nil || g.Group(l.Group) == nil || g.Group(l.Group).Topic(l.Topic) == nil {
			return nil
		}
		return g.Group(l.Group).Topic(l.Topic).Partitions
	}
	commits := partitions(f.Groups)
	left := false // the group's members are known not to consume the topic any more
	if len(commits) > 0 {
		s := f.Groups.Group(l.Group).Topic(l.Topic).Subscribed
		left = s.OK && !s.Value
	}
	every := func(p []kafka.GroupPartition, holds func(kafka.GroupPartition) bool) bool {
		return len(p) > 0 && !slices.ContainsFunc(p, func(one kafka.GroupPartition) bool { return !holds(one) })
	}
	compares := func(p []kafka.GroupPartition) bool {
		return slices.ContainsFunc(p, func(one kafka.GroupPartition) bool {
			h, ok := marked.Handled[int64(one.Partition)]
			return ok && h.To >= 0 && one.Committed >= 0
		})
	}
	var v consumer.Values
	all := false // every consumer was read, and tells of this group and topic
	if f.Consumers != nil {
		v, all = f.Consumers.Values[consumer.Key{Group: l.Group, Topic: l.Topic}]
		all = all && f.Consumers.Unread <= 0
	}
	var compared *retention.Series
	if f.Retention != nil {
		compared = f.Retention.Find(l.Database, l.Group, l.Topic)
	}
	switch l.Rule {
	case "duplicate-ratio":
		n, d := v.Processed.Value, v.Duplicates.Value
		return all && told(v.Processed) && told(v.Duplicates) && n+d >= 1000 && d/(n+d) <= f.Thresholds.DuplicateRatioMax
	case "handle-latency":
		return all && told(v.P99) && v.Timed.Value >= 1000 && v.P99.Value <= f.Thresholds.LatencyP99
	case "commit-lag":
		return all && told(v.CommitLag) || compares(commits) && !marked.Newest.IsZero()
	case "dead-letters":
		return all && told(v.DeadLettered) && v.DeadLettered.Value < 1
	case "records-lost":
		return !(told(v.Lost) && v.Lost.Value >= 1) && (left || every(commits, func(p kafka.GroupPartition) bool {
			return p.Expired.OK && p.Expired.Value == 0 && p.OutOfRange.OK && !p.Beyond()
		}))
	case "lag":
		return left || every(commits, func(p kafka.GroupPartition) bool {
			return p.Lag.OK && p.Lag.Value >= 0 && !p.Beyond() && (p.Lag.Value == 0 || p.Waiting.OK && !p.Waiting.Value.IsZero())
		})
	case "open-transaction":
		return left || every(commits, func(p kafka.GroupPartition) bool {
			return p.Lag.OK && (!p.Held || !p.Waiting.OK || p.Waiting.Value.IsZero() || f.Now.Sub(p.Waiting.Value) <= time.Minute)
		})
	case "committed-offsets":
		m := f.Retention.FindMissing(l.Group, l.Topic)
		return len(commits) > 0 && (m == nil || !m.Gone)
	case "commit-order":
		return marked.Counted && len(s.Markers.Inexact) == 0 && compares(partitions(s.Before))
	case "row-count":
		return marked.Counted && marked.Rows >= 0
	case "retention-ratio":
		t := f.Topics.Topics[l.Topic]
		r := t.Retention.Value
		bySize := r.SizeLimited() && compared != nil && compared.Numbers.OldestRecord.OK
		return t.Retention.OK && (bySize || r.Seconds.OK && r.Seconds.Value >= 0) && (!marked.Oldest.IsZero() || marked.Pruning || s.Markers.ConfiguredRetention(l.Group) > 0)
	case "replay-exposure":
		return compared != nil && len(compared.Partitions) > 0 && !slices.ContainsFunc(compared.Partitions, func(p *retention.Partition) bool {
			return !p.Unprotected.OK || p.Unprotected.Value != 0 || !p.Unverified.OK || p.Unverified.Value != 0
		})
	case "retention-margin":
		return len(compared.Margins) > 0 && !slices.ContainsFunc(compared.Margins, func(m retention.Margin) bool { return m.Value < 0 })
	case "effect-divergence":
		d := s.Divergence
		return d != nil && d.Compared > 0 && slices.ContainsFunc(d.Rows, func(r postgres.Diverging) bool { return r.Group == l.Group }) &&
			!slices.ContainsFunc(d.Rows, func(r postgres.Diverging) bool { return r.Group == l.Group && r.Rows != 0 })
	case "unique-key":
		return slices.ContainsFunc(s.Markers.Table.Indexes, func(i postgres.Index) bool { return i.Unique && i.Valid && !i.Partial })
	case "time-index":
		return s.Markers.Table.TimeIndex != ""
	case "vacuum-horizon":
		return len(s.Health.Holders) > 0
	case "index-bloat":
		return slices.ContainsFunc(s.Health.Indexes, func(i postgres.IndexHealth) bool { return i.Bloat > 0 && finite(i.Bloat) })
	case "dead-rows":
		return !s.Health.Standby && s.Health.DeadRows >= 0
	case "autovacuum":
		return !s.Health.Standby && !s.Health.Autovacuum.Off && s.Health.Autovacuum.DeadRows >= 0
	}
	return false // a new line says here what its OK rests on
}
