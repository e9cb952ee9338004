package postgres

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"oncewatch/collectors/handled"
	"oncewatch/collectors/poll"
	"oncewatch/collectors/postgres/cells"
)

var (
	seriesLabels = []string{"database", "consumer_group", "topic"}

	rowCountDesc = prometheus.NewDesc("processed_events_row_count",
		"Markers in the table, exact at the poll's snapshot. Absent until all have been counted.", seriesLabels, nil)
	oldestDesc = prometheus.NewDesc("processed_events_oldest_age_seconds",
		"Age of the oldest surviving marker. Absent without markers, and until the first ones have been counted.", seriesLabels, nil)
	newestDesc = prometheus.NewDesc("processed_events_newest_age_seconds",
		"Age of the newest marker; negative where its time lies in the future. Absent without markers, and until the last ones have been counted.", seriesLabels, nil)
	insertedDesc = prometheus.NewDesc("processed_events_inserted_total",
		"Markers seen to appear since the exporter started.", seriesLabels, nil)
	prunedDesc = prometheus.NewDesc("processed_events_pruned_total",
		"Markers seen to vanish since the exporter started.", seriesLabels, nil)
	observedDesc = prometheus.NewDesc("processed_events_observed_retention_seconds",
		"Age at which markers were last seen to be pruned. Absent until a prune has been seen.", seriesLabels, nil)
	configuredDesc = prometheus.NewDesc("processed_events_configured_retention_seconds",
		"What the configuration says the pruner keeps. Absent where it says nothing.", []string{"database", "consumer_group"}, nil)
	rowLimitDesc = prometheus.NewDesc("processed_events_row_limit",
		"The configured limit of markers. Absent where none is configured.", []string{"database", "consumer_group"}, nil)

	ledgerLabels = []string{"database"}
	readyDesc    = prometheus.NewDesc("oncewatch_ledger_ready",
		"1 once the counts are complete; until then they are withheld.", ledgerLabels, nil)
	inexactDesc = prometheus.NewDesc("oncewatch_ledger_inexact",
		"1 for each reason why the counts may be off. Absent where there is no reason.", []string{"database", "reason"}, nil)
	correctionsDesc = prometheus.NewDesc("oncewatch_ledger_corrections_total",
		"Rows the scrub had to correct.", ledgerLabels, nil)
	scrubAgeDesc = prometheus.NewDesc("oncewatch_ledger_scrub_age_seconds",
		"Every bucket has been verified within this time. Absent until a first round has verified all.", ledgerLabels, nil)
	scrubRoundDesc = prometheus.NewDesc("oncewatch_ledger_scrub_round_seconds",
		"How long a verification of all buckets takes at the present pace. Absent until the first poll that verifies some.", ledgerLabels, nil)
	progressDesc = prometheus.NewDesc("oncewatch_ledger_backfill_progress_ratio",
		"Share of the markers' time span that is counted.", ledgerLabels, nil)
	cellsDesc = prometheus.NewDesc("oncewatch_ledger_cells",
		"Cells that the ledger holds in memory; postgres.max-cells bounds them.", ledgerLabels, nil)
	bytesDesc = prometheus.NewDesc("oncewatch_ledger_memory_bytes",
		"Estimated memory of these cells.", ledgerLabels, nil)
)

func describeMarkers(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		rowCountDesc, oldestDesc, newestDesc, insertedDesc, prunedDesc, observedDesc, configuredDesc, rowLimitDesc,
		readyDesc, inexactDesc, correctionsDesc, scrubAgeDesc, scrubRoundDesc, untimedDesc, progressDesc, cellsDesc, bytesDesc,
	} {
		ch <- d
	}
}

// Reason is why counts may be off.
type Reason string

// The reasons.
const (
	// ReasonRole: the role may not see when the transactions of others began
	// (GRANT pg_read_all_stats): markers that appear late are looked for in a
	// wider window.
	ReasonRole Reason = "role"
	// ReasonStandby: a hot standby does not show the primary's transactions.
	ReasonStandby Reason = "standby"
	// ReasonPrepared: prepared transactions hide when they began.
	ReasonPrepared Reason = "prepared_transactions"
	// ReasonNoIndex: no valid index leads with the time: the table is counted
	// page by page, now and then.
	ReasonNoIndex Reason = "no_index"
	// ReasonNoTime: the markers carry no time: they are counted page by page,
	// now and then, and nothing is known of their age.
	ReasonNoTime Reason = "no_time"
	// ReasonUnexplained: the server has seen rows come or go that the ledger
	// has not: all is being counted again.
	ReasonUnexplained Reason = "unexplained_changes"
	// ReasonStructure: a partition was attached, detached or dropped, or the
	// table was truncated or rewritten: the times that this can have touched
	// are being counted again.
	ReasonStructure Reason = "structure_changed"
	// ReasonFailover: another server took over, which may lack the last that
	// the other had committed: all is being counted again.
	ReasonFailover Reason = "failover"
	// ReasonStatistics: the server has lost its tally, so that nothing would
	// tell of a miss: all is being counted again.
	ReasonStatistics Reason = "statistics_reset"
	// ReasonFuture: so many markers carry a future time that not all of them
	// are counted at every poll.
	ReasonFuture Reason = "future_rows"
	// ReasonCatchingUp: more was pruned than one snapshot can follow.
	ReasonCatchingUp Reason = "catching_up"
)

// Handled is what is known of the offsets of one partition.
type Handled = handled.Offsets

// Markers is what one poll of the ledger knows. Nothing in it changes.
type Markers struct {
	// Database is the value of the label.
	Database string
	// Table is the table's structure, and Identity tells it from every other.
	Table    *Table
	Identity string
	// Series is sorted by group and topic.
	Series []Series
	others []Series // of groups that are not watched
	// Ready says that the counts are complete. Until then Series holds the
	// ages that are known, and no counts.
	Ready bool
	// Inexact holds the reasons why counts may be off, sorted.
	Inexact []Reason
	// Progress of the backfill, 0 to 1.
	Progress float64
	// Corrections is the number of rows the scrub had to correct.
	Corrections int64
	// ScrubSince is when the last complete verification began; zero: none yet.
	ScrubSince time.Time
	// ScrubRound is how long a verification takes at the present pace; 0 where
	// that is not known yet.
	ScrubRound time.Duration
	// Untimed are the rows whose time is NULL, by group: entries that never
	// finished. Nil where the column cannot be NULL, or they are not known.
	Untimed map[string]int64
	// Cells and Bytes are the ledger's memory.
	Cells, Bytes int

	// ServerTime is the server's clock at the snapshot, on the column's clock
	// as if it were UTC; ReadAt is ours at that moment.
	ServerTime, ReadAt time.Time

	zone *time.Location // whose wall clock the column holds; nil where it is an instant

	// Config is the store's, with its defaults filled in.
	Config Config

	problems []poll.Problem
}

// Series is a consumer group × topic. Topic is empty where the table has no
// such column.
type Series struct {
	Group, Topic string
	// Rows is the number of markers; only where Counted.
	Rows    int64
	Counted bool
	// LastDay is how many of them carry a time of the last 24 hours; 0 where
	// no index tells.
	LastDay int64
	// Oldest and Newest are the markers' times on the column's clock; zero
	// where there are none, they are not known yet or infinite.
	Oldest, Newest time.Time
	// Inserted and Pruned are the markers seen to appear and to vanish since
	// the start.
	Inserted, Pruned int64
	// ObservedRetention is the age at which markers were last seen to be
	// pruned; only where Pruning.
	ObservedRetention time.Duration
	Pruning           bool
	// PrunedTo is the time of the newest marker seen to be pruned; zero where
	// none was.
	PrunedTo time.Time
	// Began is, by partition, the first offset that the group was given: what
	// lies below it was never handled. Only where a progress table tells.
	Began map[int64]int64
	// Handled is, by partition, which offsets have or had a marker. Complete
	// where Counted; empty without the columns.
	Handled map[int64]Handled
}

// Age is how old a time of the column is at now, our clock: by the server's
// clock at the poll and the time that has passed here since. It stays within
// 146 years.
func (m *Markers) Age(t, now time.Time) time.Duration {
	return duration(m.ago(t)) + now.Sub(m.ReadAt)
}

// ageSeconds is the age without bounds, for export.
func (m *Markers) ageSeconds(t, now time.Time) float64 {
	return float64(m.ago(t))/float64(cells.Second) + now.Sub(m.ReadAt).Seconds()
}

// duration converts microseconds and stays within half of what a Duration can
// hold, so that callers may add and subtract.
func duration(us int64) time.Duration {
	const bound = math.MaxInt64 / 2 / int64(time.Microsecond)
	return time.Duration(min(max(us, -bound), bound)) * time.Microsecond
}

// PerDay is how many markers of a series a day brings, by the last day or
// what there is of it; 0 where that is not known.
func (m *Markers) PerDay(s *Series, now time.Time) float64 {
	const day = 24 * time.Hour
	over := min(day, m.Age(s.Oldest, now))
	if s.LastDay == 0 || s.Oldest.IsZero() || over < time.Minute {
		return 0
	}
	return float64(s.LastDay) * float64(day) / float64(over)
}

// ConfiguredRetention is what the pruner of a group keeps, as configured; 0
// where it is not.
func (m *Markers) ConfiguredRetention(group string) time.Duration {
	return m.Config.ConfiguredRetention(group)
}

// RowLimit is the configured limit of markers of a group; 0 where there is
// none.
func (m *Markers) RowLimit() int64 { return m.Config.RowLimit }

// All are the series of the whole table, those of groups that are not watched
// included.
func (m *Markers) All() []Series { return slices.Concat(m.Series, m.others) }

// watched leaves out what another process watches.
func (m *Markers) watched(group func(string) bool) {
	m.Series = slices.DeleteFunc(m.Series, func(s Series) bool {
		if s.Group == "" || group(s.Group) { // "": the table has no such column
			return false
		}
		m.others = append(m.others, s)
		return true
	})
	maps.DeleteFunc(m.Untimed, func(g string, _ int64) bool { return g != "" && !group(g) })
}

// Rows is the number of markers in the table.
func (m *Markers) Rows() (n int64) {
	for _, s := range m.All() {
		n += s.Rows
	}
	return n
}

// Groups are the consumer groups seen, sorted.
func (m *Markers) Groups() []string {
	var groups []string
	for _, s := range m.Series {
		if len(groups) == 0 || groups[len(groups)-1] != s.Group {
			groups = append(groups, s.Group)
		}
	}
	return groups
}

// Problems implements poll.Snapshot.
func (m *Markers) Problems() []poll.Problem { return m.problems }

// Collect implements poll.Snapshot.
func (m *Markers) Collect(now time.Time, ch chan<- prometheus.Metric) {
	db := m.Database
	group, first := "", true
	for _, s := range m.Series {
		if s.Counted {
			poll.Gauge(ch, rowCountDesc, float64(s.Rows), db, s.Group, s.Topic)
		}
		poll.Counter(ch, insertedDesc, float64(s.Inserted), db, s.Group, s.Topic)
		poll.Counter(ch, prunedDesc, float64(s.Pruned), db, s.Group, s.Topic)
		if !s.Oldest.IsZero() {
			poll.Age(ch, oldestDesc, m.ageSeconds(s.Oldest, now), db, s.Group, s.Topic)
		}
		if !s.Newest.IsZero() {
			poll.Age(ch, newestDesc, m.ageSeconds(s.Newest, now), db, s.Group, s.Topic)
		}
		if s.Pruning {
			poll.Gauge(ch, observedDesc, s.ObservedRetention.Seconds(), db, s.Group, s.Topic)
		}
		if first || s.Group != group {
			if d := m.ConfiguredRetention(s.Group); d > 0 {
				poll.Gauge(ch, configuredDesc, d.Seconds(), db, s.Group)
			}
			if m.Config.RowLimit > 0 {
				poll.Gauge(ch, rowLimitDesc, float64(m.Config.RowLimit), db, s.Group)
			}
		}
		group, first = s.Group, false
	}
	ready := 0.0
	if m.Ready {
		ready = 1
	}
	poll.Gauge(ch, readyDesc, ready, db)
	for _, reason := range m.Inexact {
		poll.Gauge(ch, inexactDesc, 1, db, string(reason))
	}
	poll.Counter(ch, correctionsDesc, float64(m.Corrections), db)
	if !m.ScrubSince.IsZero() {
		poll.Age(ch, scrubAgeDesc, now.Sub(m.ScrubSince).Seconds(), db)
	}
	if m.ScrubRound > 0 {
		poll.Gauge(ch, scrubRoundDesc, m.ScrubRound.Seconds(), db)
	}
	for g, n := range m.Untimed {
		poll.Gauge(ch, untimedDesc, float64(n), db, g)
	}
	poll.Gauge(ch, progressDesc, m.Progress, db)
	poll.Gauge(ch, cellsDesc, float64(m.Cells), db)
	poll.Gauge(ch, bytesDesc, float64(m.Bytes), db)
}

// snapshot copies what the ledger knows after a poll.
func (l *ledger) snapshot(r *reading) *Markers {
	m := &Markers{
		Database: cmp.Or(l.store.cfg.Database, r.session.Database),
		Table:    l.table, Identity: l.ident.String(), Config: l.store.cfg, problems: r.problems,
		Ready: l.complete(), Progress: l.backfill.progress(),
		Corrections: l.scrub.corrections, ScrubSince: l.scrub.since, ScrubRound: l.scrub.round,
		Cells: l.book.Size(), Bytes: l.book.Bytes(),
		ServerTime: time.UnixMicro(r.inside.clock).UTC(), ReadAt: r.read,
		zone: l.table.location(),
	}
	for reason := range r.reasons {
		m.Inexact = append(m.Inexact, reason)
	}
	slices.Sort(m.Inexact)

	totals := l.whole().Totals(len(l.series.All))
	lastDay := l.book.Newer(r.inside.clock-24*cells.Hour, r.inside.clock, len(l.series.All))
	groups := map[string]bool{}
	for id, s := range l.series.All {
		t := totals[id]
		out := Series{
			Group: s.Key.Group, Topic: s.Key.Topic, Counted: m.Ready, Inserted: s.Inserted, Pruned: s.Pruned,
			ObservedRetention: duration(s.Evidence.Observed), Pruning: s.Evidence.Pruning(),
			PrunedTo: cells.Time(s.PrunedTo), Handled: s.Known(),
		}
		groups[out.Group] = true
		if m.Ready {
			out.Rows, out.LastDay = t.Count, lastDay[id]
		}
		if t.Count > 0 {
			// The backfill goes upward: below it a series' oldest is known,
			// and in the tail its newest.
			if !l.backfill.active || t.Oldest < l.backfill.next {
				out.Oldest = cells.Time(t.Oldest)
			}
			if !l.backfill.active || t.Newest >= l.backfill.end {
				out.Newest = cells.Time(t.Newest)
			}
		}
		m.Series = append(m.Series, out)
	}
	for _, g := range sortedKeys(l.store.cfg.GroupRetention) {
		if !groups[g] && m.Ready {
			m.Series = append(m.Series, Series{Group: g, Counted: true}) // known, and without markers
		}
	}
	slices.SortFunc(m.Series, func(a, b Series) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Topic, b.Topic))
	})
	m.Untimed = l.untimed.of(m.Series)
	return m
}

func (l *ledger) complete() bool {
	if l.table.TimeIndex == "" {
		return l.pages.complete()
	}
	return !l.backfill.active
}
