package postgres

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"oncewatch/collectors/poll"
	"oncewatch/collectors/postgres/cells"
)

// tuning is the ledger's constants; tests make them small.
type tuning struct {
	fine   int64 // width of buckets where rows come and go, at first
	coarse int64 // width of buckets elsewhere, at first
	// slack is how far behind the clock a new row may appear: the time between
	// a transaction taking its start and the server showing it.
	slack int64
	// standbySlack is the same on a standby, where the primary's open
	// transactions cannot be seen.
	standbySlack int64
	// edgeRows is how many rows must stand unchanged above the last loss for
	// the pruned edge to end.
	edgeRows int64
	// edgeBudget is how many rows of edges a poll counts without need.
	edgeBudget int64
	// scrubRows is how many rows a poll verifies, edges included; more where a
	// round would take longer than scrubRound.
	scrubRows  int64
	scrubRound time.Duration
	// future is how far ahead of the clock the tail always reaches; it is open
	// as long as no more than futureRows lie beyond.
	future, futureRows int64
	// gap is the longest tail that is counted at once.
	gap int64
	// budget is snapshotBudget, of what can wait.
	budget time.Duration
	// chunk is how long a statement of the backfill should take, and share how
	// much of a poll's time the backfill may use.
	chunk time.Duration
	share float64
	// inlineRows is how many suspect rows are counted again at once, and hurry
	// how much of a poll's time may be used for more.
	inlineRows int64
	hurry      float64
	// costly is the number of rows from which a false suspicion costs more
	// than a small miss.
	costly int64
	// duty is how much of the time the fallback without an index may read.
	duty float64
}

func defaultTuning() tuning {
	return tuning{
		fine: 5 * cells.Second, coarse: cells.Minute,
		slack: 5 * cells.Second, standbySlack: 2 * cells.Minute,
		edgeRows: 1000, edgeBudget: 20_000, scrubRows: 20_000,
		future: 5 * cells.Minute, futureRows: 20_000,
		gap:    10 * cells.Minute,
		budget: snapshotBudget,
		chunk:  200 * time.Millisecond, share: 0.6,
		inlineRows: 50_000, hurry: 0.3, costly: 1_000_000,
		duty: 0.01,
	}
}

// ledger is a poll.Source. Its state belongs to Poll.
type ledger struct {
	running sync.Mutex // held by a poll

	store *Store
	t     tuning

	schema discovery
	table  *Table // nil before the first poll that found it
	count  *counter
	ident  identity
	server serverIdentity
	// files are the tables that hold the rows; nil before the first poll.
	files map[int64]leafFile

	book   cells.Book
	series cells.SeriesTable
	// handledOf is the table that the series' handled offsets are of;
	// handledAll says that all its markers have been looked at once.
	handledOf  identity
	handledAll bool
	open       *openTransactions
	// clock is the server's at the last poll, 0 before; clockRead is ours.
	clock     int64
	clockRead time.Time
	// tailFrom is where the next tail begins. hotFrom is where fine buckets
	// begin, below it.
	tailFrom, hotFrom int64
	// farFrom is where the future begins that nobody has counted yet; maxTime
	// once all of it is.
	farFrom int64
	// tailTooLong says that the last tail was too much for one statement.
	tailTooLong bool
	// edgesLeft are the edges that this poll leaves for the next, which begins
	// at edgeTurn.
	edgesLeft []window
	edgeTurn  int64
	// tailOpen says that the last tail had no end.
	tailOpen bool
	// fine is the width of buckets above hotFrom and at the pruned edge, and
	// width that of the others, a multiple of it.
	fine, width int64

	// kept is what another ledger knew, until the first poll; refused is told
	// why it is of no use. compares says that the first count is compared with
	// it.
	kept *cells.Kept
	// untold says that what is found now came or went before the tally began.
	untold   bool
	refused  func(reason string)
	compares bool

	// fixed is the least that a chunk has taken.
	fixed    time.Duration
	backfill backfill
	scrub    scrub
	suspects suspects
	untimed  untimed
	tally    tally
	pages    pages

	// observer is called in the counting snapshot when all is counted, for
	// tests to compare.
	observer func(ctx context.Context, conn *pgx.Conn)
}

// failover is how far back rows are counted again when another server took
// over: one that replicated asynchronously has lost its lag.
const failover = 2 * cells.Minute

// identity tells a table from another that took its place.
type identity struct {
	system   string // of the cluster
	database string
	table    uint32
	kind     string // of the time column
	has      Columns
	zone     string
	indexed  bool
}

func (id identity) String() string {
	return fmt.Sprintf("table %d of database %s in cluster %s, by %s (%s) and %+v", id.table, id.database, id.system, id.has.ProcessedAt, id.kind, id.has)
}

func newLedger(s *Store, t tuning) *ledger {
	t.scrubRound = cmp.Or(t.scrubRound, s.cfg.ScrubRound)
	l := &ledger{store: s, t: t, series: cells.NewSeriesTable()}
	l.reset()
	return l
}

// reset forgets what was counted, but not what was seen to come and go.
func (l *ledger) reset() {
	l.book = cells.Book{}
	l.open = &openTransactions{slack: l.t.slack}
	l.clock, l.tailFrom, l.hotFrom, l.fine, l.width = 0, 0, 0, l.t.fine, l.t.coarse
	l.tailTooLong, l.compares, l.edgeTurn = false, false, 0
	l.fixed = 0
	l.suspects, l.files, l.untimed = suspects{}, nil, untimed{}
	l.backfill = backfill{}
	l.scrub = scrub{corrections: l.scrub.corrections}
	l.tally = tally{}
	l.pages = pages{}
}

// Describe implements poll.Source.
func (l *ledger) Describe(ch chan<- *prometheus.Desc) { describeMarkers(ch) }

// reading is what one poll has read so far.
type reading struct {
	session *session
	before  *activity // read outside the counting snapshot
	inside  *activity // read inside it
	read    time.Time // when inside was read, by our clock
	stats   []leafStats

	// lost says that the server has forgotten its tally.
	lost bool

	problems []poll.Problem
	reasons  map[Reason]bool
	changes  []cells.Change
	// compares says that changes are since another ledger's last poll.
	compares bool
}

// Poll implements poll.Source.
func (l *ledger) Poll(ctx context.Context) (poll.Snapshot, error) {
	l.running.Lock()
	defer l.running.Unlock()
	s := l.store
	r := &reading{reasons: map[Reason]bool{}}
	var c *counter
	err := s.inSnapshot(ctx, bounds{}, func(conn *transaction) (err error) {
		if err := s.discovered(ctx, conn, &l.schema); err != nil {
			return err
		}
		r.session, r.problems = l.schema.session, slices.Clone(l.schema.problems)
		c = newCounter(r.session.Table)
		if r.before, err = readActivity(ctx, conn, c, r.session); err != nil {
			return err
		}
		r.stats, err = readStats(ctx, conn, r.session)
		return err
	})
	if err != nil {
		l.schema = discovery{}
		return nil, explain("table "+s.cfg.Table, err)
	}
	l.meet(r.session, c)
	r.compares = l.compares
	l.meetServer(r)
	if l.table.TimeIndex == "" {
		err = l.pollPages(ctx, r)
	} else {
		err = l.pollRanges(ctx, r)
	}
	if r.inside != nil { // else nothing was read in a snapshot
		l.observe(r)
	}
	if err == nil {
		l.countUntimed(ctx, r)
	}
	if err != nil {
		l.schema = discovery{}
		return nil, explain("table "+l.table.String(), err)
	}
	m := l.snapshot(r)
	s.learn(func(f *facts) {
		f.rows, f.groups = -1, m.Groups()
		if m.Ready {
			f.rows = m.Rows()
		}
	})
	if s.group != nil {
		m.watched(s.group)
	}
	return m, nil
}

// meet starts afresh where the table is another than before.
func (l *ledger) meet(in *session, c *counter) {
	t := in.Table
	id := identity{system: in.System, database: in.Database, table: t.OID, has: t.Has, zone: t.Zone, indexed: t.TimeIndex != ""}
	at := t.Column(t.Has.ProcessedAt)
	if at != nil {
		id.kind = at.Type
	}
	if l.table != nil && id != l.ident {
		l.store.log.Info("the marker table is another than before and is counted anew", "table", t.String())
		l.reset()
	}
	switch {
	case l.table != nil && id == l.ident:
	case !t.Timed():
		l.store.log.Warn("the markers carry no time: they are counted page by page, now and then, and nothing is known of their age",
			"table", t.String(), "remedy", t.AddTime())
	case t.TimeIndex == "":
		l.store.log.Warn("no valid index leads with the time: the markers are counted page by page, now and then",
			"table", t.String(), "remedy", cmp.Or(t.CreateIndex(t.Has.ProcessedAt), "set postgres.table to a table"))
	}
	l.table, l.count, l.ident = t, c, id
	l.restore()
	l.open.reach = 0
	if at != nil && !transactionTime(at) {
		l.open.reach = l.t.gap
	}
}

// pollRanges counts again, in one snapshot, what can have changed since the
// last poll, and then goes on with the backfill. A range is replaced by what
// the snapshot says of it, so a poll that fails half-way leaves nothing wrong:
// the next counts all of it again.
func (l *ledger) pollRanges(ctx context.Context, r *reading) error {
	var next *openTransactions
	l.meetTables(r)
	err := l.store.inSnapshot(ctx, bounds{index: true}, func(conn *transaction) (err error) {
		// The first statement takes the snapshot.
		if r.inside, err = readActivity(ctx, conn, l.count, r.session); err != nil {
			return err
		}
		r.read = l.store.now()
		if err := l.readTally(ctx, conn, r); err != nil {
			return err
		}
		q := &recounter{ledger: l, conn: conn, reading: r}
		if err := l.countTail(ctx, q); err != nil {
			return err
		}
		if next, err = l.countEnded(ctx, q); err != nil {
			return err
		}
		if err := l.countEdges(ctx, q); err != nil {
			return err
		}
		if err := l.followRest(ctx, q); err != nil {
			return err
		}
		l.suspect(r)
		if err := l.recheckNow(ctx, q); err != nil {
			return err
		}
		if err := l.verify(ctx, q); err != nil {
			return err
		}
		if l.observer != nil && conn.PgConn().TxStatus() == 'T' {
			l.observer(ctx, conn.Conn)
		}
		return nil
	})
	if err != nil {
		return err
	}
	l.open = next
	l.advance(r)
	l.recheck(ctx, r)
	return l.fill(ctx, r)
}
