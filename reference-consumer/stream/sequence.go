package stream

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/reference-consumer/header"
)

// maxGaps bounds what is remembered of one producer; the oldest is counted at
// once when there are more.
const maxGaps = 100

// gap is a range of sequence numbers not seen yet.
type gap struct {
	From  int64     `json:"from"`
	To    int64     `json:"to"` // inclusive
	Since time.Time `json:"since"`
}

// producer is what is known of one producer in one partition.
type producer struct {
	last  int64
	gaps  []gap
	dirty bool
	// jumps says that its next number may be any higher one: what lies between
	// is counted as lost already, by offsets.
	jumps bool
}

// sequences of a partition's producers. They are stored with the offset, so
// that a crash neither invents nor forgets a gap.
type sequences struct {
	place
	pool  *pgxpool.Pool
	log   *slog.Logger
	grace time.Duration // how long a missing number may still arrive
	lost  func(n int64) // counts lost events

	producers map[string]*producer
	gaps      int
}

func loadSequences(ctx context.Context, pool *pgxpool.Pool, at place) (*sequences, error) {
	s := &sequences{place: at, pool: pool, producers: map[string]*producer{}}
	rows, err := pool.Query(ctx, `SELECT producer, last_sequence, gaps FROM producer_sequences
WHERE consumer_group = $1 AND topic = $2 AND partition = $3`, at.group, at.topic, at.id)
	if err != nil {
		return nil, fmt.Errorf("read the producers' sequences: %w", err)
	}
	var name string
	var last int64
	var raw []byte
	_, err = pgx.ForEachRow(rows, []any{&name, &last, &raw}, func() error {
		pr := &producer{last: last}
		if err := json.Unmarshal(raw, &pr.gaps); err != nil {
			return fmt.Errorf("gaps of producer %q: %w", name, err)
		}
		s.producers[name] = pr
		s.gaps += len(pr.gaps)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the producers' sequences: %w", err)
	}
	return s, nil
}

// see notes a record's sequence number, if it has one. Numbers seen before are
// redeliveries.
func (s *sequences) see(r *kgo.Record, now time.Time) {
	name, seq, ok := numbered(r)
	if !ok {
		return
	}
	pr := s.producers[name]
	if pr == nil {
		// The first number seen of a producer is where counting begins: the
		// topic may have expired what came before.
		s.producers[name] = &producer{last: seq, dirty: true}
		return
	}
	jumps := pr.jumps
	pr.jumps = false
	switch {
	case seq > pr.last+1 && jumps:
		pr.last, pr.dirty = seq, true
	case seq > pr.last+1:
		pr.gaps = append(pr.gaps, gap{pr.last + 1, seq - 1, now})
		s.gaps++
		fallthrough
	case seq == pr.last+1:
		pr.last, pr.dirty = seq, true
	default:
		s.fill(pr, seq)
	}
}

// jump notes that records are gone from the log, whosever they were.
func (s *sequences) jump() {
	for _, pr := range s.producers {
		pr.jumps = true
	}
}

func numbered(r *kgo.Record) (name string, seq int64, ok bool) {
	for _, h := range r.Headers {
		switch h.Key {
		case header.Producer:
			name = string(h.Value)
		case header.Sequence:
			n, err := strconv.ParseInt(string(h.Value), 10, 64)
			seq, ok = n, err == nil && n > 0
		}
	}
	return name, seq, ok && storable(name)
}

// maxProducer is the longest name of a producer, in bytes; longer ones would
// not fit the index.
const maxProducer = 255

// storable names only: the row is written with the offset, so one that
// PostgreSQL refuses would keep the partition from ever moving on. The event
// of another name is handled, it is only not numbered.
func storable(name string) bool {
	return name != "" && len(name) <= maxProducer && utf8.ValidString(name) && !strings.ContainsRune(name, 0)
}

// fill takes a late number out of its gap.
func (s *sequences) fill(pr *producer, seq int64) {
	for i, g := range pr.gaps {
		if seq < g.From || seq > g.To {
			continue
		}
		rest := append([]gap{}, pr.gaps[:i]...)
		if g.From < seq {
			rest = append(rest, gap{g.From, seq - 1, g.Since})
		}
		if seq < g.To {
			rest = append(rest, gap{seq + 1, g.To, g.Since})
		}
		rest = append(rest, pr.gaps[i+1:]...)
		s.gaps += len(rest) - len(pr.gaps)
		pr.gaps, pr.dirty = rest, true
		return
	}
}

func (s *sequences) waiting() bool { return s != nil && s.gaps > 0 }

// expire counts the gaps that stayed open longer than the grace period. They
// are counted before they are forgotten: a crash in between counts twice,
// never not at all.
func (s *sequences) expire(now time.Time) (changed bool) {
	if !s.waiting() {
		return false
	}
	deadline := now.Add(-s.grace)
	for name, pr := range s.producers {
		for len(pr.gaps) > 0 && (pr.gaps[0].Since.Before(deadline) || len(pr.gaps) > maxGaps) {
			g := pr.gaps[0]
			pr.gaps = pr.gaps[1:]
			s.gaps--
			pr.dirty, changed = true, true
			s.lost(g.To - g.From + 1)
			s.log.Error("events lost: a producer's sequence has a gap", "producer", name, "from_sequence", g.From, "to_sequence", g.To)
		}
	}
	return changed
}

// expireAndSave does so while no batch comes that could store it.
func (s *sequences) expireAndSave(ctx context.Context, now time.Time) {
	if !s.expire(now) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	pipe := &pgx.Batch{}
	s.store(pipe)
	if err := s.pool.SendBatch(ctx, pipe).Close(); err != nil {
		s.log.Warn("could not store the producers' sequences", "error", err)
		return
	}
	s.stored()
}

const sequenceSQL = `INSERT INTO producer_sequences (consumer_group, topic, partition, producer, last_sequence, gaps)
SELECT $1, $2, $3, u.producer, u.last, u.gaps::jsonb FROM unnest($4::text[], $5::bigint[], $6::text[]) AS u(producer, last, gaps)
ON CONFLICT (consumer_group, topic, partition, producer) DO UPDATE
SET last_sequence = excluded.last_sequence, gaps = excluded.gaps, updated_at = now()`

// store adds the changed rows to the transaction.
func (s *sequences) store(pipe *pgx.Batch) {
	var names, gaps []string
	var last []int64
	for name, pr := range s.producers {
		if !pr.dirty {
			continue
		}
		raw := []byte("[]")
		if len(pr.gaps) > 0 {
			raw, _ = json.Marshal(pr.gaps) // numbers and times: cannot fail
		}
		names, last, gaps = append(names, name), append(last, pr.last), append(gaps, string(raw))
	}
	if len(names) > 0 {
		pipe.Queue(sequenceSQL, s.group, s.topic, s.id, names, last, gaps)
	}
}

// stored notes that the rows are in the database.
func (s *sequences) stored() {
	for _, pr := range s.producers {
		pr.dirty = false
	}
}
