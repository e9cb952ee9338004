package replay

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/collectors/kafka"
	"oncewatch/collectors/number"
	"oncewatch/collectors/postgres"
)

// Verified is what reading the records told besides the answer.
type Verified struct {
	Records int64 `json:"records"`
	// WithoutID carry no event id, or none that the table could hold: nothing
	// can be told of them.
	WithoutID int64 `json:"without_event_id"`
	// Twins are ids of several records, Conflicts ids whose marker is of
	// another payload: how many, and some of them.
	Twins         int64  `json:"published_twice"`
	SomeTwins     []Twin `json:"published_twice_examples,omitempty"`
	Conflicts     int64  `json:"two_payloads"`
	SomeConflicts []Twin `json:"two_payloads_examples,omitempty"`
	// Unmarked are the records above a partition's lowest marker that have
	// none: handled without one, dead-lettered, or lost.
	Unmarked     int64           `json:"passed_without_marker"`
	SomeUnmarked []UnmarkedRange `json:"passed_without_marker_examples,omitempty"`
	// Notes say what was not looked at.
	Notes []string `json:"notes,omitempty"`

	Statements       int     `json:"statements"`
	LongestStatement float64 `json:"longest_statement_seconds"`
	Seconds          float64 `json:"seconds"`
}

// Twin is an event id and two places where it was met; Other is empty where
// that was another record of this reading.
type Twin struct {
	EventID string `json:"event_id"`
	At      string `json:"at"`
	Other   string `json:"other,omitempty"`
}

// UnmarkedRange is offsets of a partition that have no marker.
type UnmarkedRange struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Range
}

// examples is how many of each are listed.
const examples = 20

// Records are those of one topic, in offset order within a partition; a
// kafka.Reader is one.
type Records interface {
	Next(context.Context) ([]*kgo.Record, error)
	Left() []kafka.Span
	Held() []kafka.Span
	Close()
}

// Markers finds deliveries in the marker table; a postgres.Lookup is one.
type Markers interface {
	Find(ctx context.Context, topic string, deliveries []postgres.Delivery) ([]postgres.Finding, error)
	Takes(id string) bool
	ComparesPayloads() bool
	KeepsOffsets() bool
	Cost() (statements int, longest time.Duration)
}

// Verifier reads the records between target and commit and looks each up.
type Verifier struct {
	Read func(ctx context.Context, topic string, spans []kafka.Span) (Records, error)
	// Markers of the group: one, or one for each shard.
	Markers []Markers
	EventID EventID
	// IDFrom is --event-id as it was written.
	IDFrom string
	// RateLimit in records a second; 0: none.
	RateLimit float64
	// Progress is told now and then; may be nil.
	Progress func(Progress)
	Now      func() time.Time
}

// Progress of a verification, in offsets, which are no fewer than records.
type Progress struct {
	Done, Total int64
	Records     int64
	Elapsed     time.Duration
}

// verification is one under way.
type verification struct {
	*Verifier
	answer  *Answer
	began   time.Time
	out     *Verified
	topic   *Topic
	parts   map[int32]*verifiedPartition
	seen    *repeats
	total   int64
	done    int64
	headers map[string]bool // seen on records without an id
	agreed  int64           // markers whose payload was compared
}

type verifiedPartition struct {
	*Partition
	next             int64
	marked           bool  // a marker was met
	latest           int64 // timestamp so far, in milliseconds
	unsafe           int64 // latest timestamp up to the last unsafe record; -1: none
	first, firstTime int64

	// Where Kafka keeps no offset of the group: what was known at the highest
	// record that has a marker, up to which it has handled the partition.
	handled *handledTo
	since   int64 // records without a marker after it
}

// handledTo is what is known of a partition up to an offset.
type handledTo struct {
	offset int64
	Counts
	safe, unsafe int64
	why          string
}

// Verify reads the records of an answer whose partitions have their offsets,
// and completes it. When the context ends or the reading fails it is completed
// as far as it came, and says so.
func (v *Verifier) Verify(ctx context.Context, a *Answer) error {
	if v.Now == nil {
		v.Now = time.Now
	}
	run := &verification{Verifier: v, answer: a, began: v.Now(), out: &Verified{}, seen: newRepeats(), headers: map[string]bool{}}
	a.Verified = run.out
	for i := range a.Topics {
		for _, p := range a.Topics[i].Partitions {
			run.total += max(0, p.Committed-max(p.Target, p.LogStart))
		}
	}
	var failed error
	var input *InputError
	for i := range a.Topics {
		if err := run.verify(ctx, &a.Topics[i]); errors.As(err, &input) {
			return err
		} else if err != nil && failed == nil {
			failed = err
		}
	}
	for _, m := range v.Markers {
		n, longest := m.Cost()
		run.out.Statements += n
		run.out.LongestStatement = max(run.out.LongestStatement, longest.Seconds())
	}
	run.out.Seconds = v.Now().Sub(run.began).Seconds()
	run.report() // the last word
	run.notes()
	if out := run.out; failed == nil && out.Records > 0 && out.WithoutID == out.Records {
		return bad("event-id", "by %s none of %s records has an event id%s: say where it is with header:NAME, key or json:/path", v.IDFrom, number.Grouped(out.Records), run.found())
	}
	if failed != nil {
		a.Partial = failed.Error()
		if errors.Is(failed, context.Canceled) {
			a.Partial = "interrupted"
		}
	}
	a.conclude()
	return nil
}

// found names the headers that there are.
func (r *verification) found() string {
	if len(r.headers) == 0 {
		return " (they carry no header)"
	}
	var names []string
	for n := range r.headers {
		names = append(names, n)
	}
	slices.Sort(names)
	return fmt.Sprintf(" (their headers: %s)", strings.Join(names, ", "))
}

func (r *verification) notes() {
	note := func(format string, args ...any) { r.out.Notes = append(r.out.Notes, fmt.Sprintf(format, args...)) }
	if r.seen.dropped {
		note("Ids published twice are seen where fewer than %s others lie between the two.", number.Grouped(remembered))
	}
	compares := slices.ContainsFunc(r.Markers, Markers.ComparesPayloads)
	switch {
	case !compares:
		note("Payloads were not compared: the table keeps no payload_hash.")
	case r.out.Conflicts*2 > r.agreed && r.out.Conflicts > 0:
		note("Payloads were not compared: most of the table's payload_hash are no SHA-256 of the record's value.")
		r.out.Conflicts, r.out.SomeConflicts = 0, nil
	}
}

// verify reads one topic.
func (r *verification) verify(ctx context.Context, t *Topic) error {
	r.topic, r.parts = t, map[int32]*verifiedPartition{}
	var spans []kafka.Span
	for i := range t.Partitions {
		p := &t.Partitions[i]
		one := &verifiedPartition{Partition: p, next: max(p.Target, p.LogStart), latest: -1, unsafe: -1, first: -1}
		r.parts[p.Partition] = one
		p.Counts = Counts{Skipped: p.Skipped}
		p.SafeOffset = min(one.next, p.Committed)
		p.Gone, p.Unverified, p.SafeTime, p.Why = nil, nil, nil, ""
		if one.next < p.Committed {
			spans = append(spans, kafka.Span{Partition: p.Partition, From: one.next, To: p.Committed})
		}
	}
	left := spans
	var held []kafka.Span
	err := func() error {
		if err := ctx.Err(); err != nil || len(spans) == 0 {
			return err
		}
		records, err := r.Read(ctx, t.Topic, spans)
		if err != nil {
			return err
		}
		defer records.Close()
		held = records.Held()
		for {
			batch, err := records.Next(ctx)
			ended := errors.Is(err, io.EOF)
			if err == nil {
				err = r.lookUp(ctx, batch)
			}
			if err == nil {
				batch = nil
				r.report()
				err = r.pace(ctx)
			}
			if ended {
				left = nil
				for _, p := range r.parts {
					p.next = p.Committed // what is between has no records
				}
				return nil
			}
			if err != nil {
				left = r.unread(records.Left(), batch)
				return err
			}
		}
	}()
	for _, s := range left {
		r.leave(s, "not read")
	}
	for _, s := range held {
		if !r.parts[s.Partition].CommitGone { // else it is after what was handled
			r.leave(s, "an open transaction holds it back")
		}
	}
	if err == nil {
		err = r.stand(t)
	}
	for _, p := range r.parts {
		p.conclude()
		r.done += p.next - max(p.Target, p.LogStart)
	}
	r.parts = nil
	return err
}

// stand says where a group stands of which Kafka keeps no offset: past the
// highest record that has a marker. What is after it was never handled.
func (r *verification) stand(t *Topic) error {
	gone, nowhere := 0, true
	for _, p := range r.parts {
		nowhere = nowhere && p.CommitGone && p.handled == nil && p.Again > 0
		if !p.CommitGone {
			continue
		}
		gone++
		if h := p.handled; h != nil {
			p.Committed, p.Counts, p.SafeOffset, p.unsafe, p.Why = h.offset, h.Counts, h.safe, h.unsafe, h.why
			r.out.Unmarked -= p.since
			r.out.SomeUnmarked = slices.DeleteFunc(r.out.SomeUnmarked, func(u UnmarkedRange) bool {
				return u.Topic == t.Topic && u.Partition == p.Partition.Partition && u.First >= h.offset
			})
			continue
		}
		first := max(p.Target, p.LogStart)
		p.lost = true
		p.Counts = Counts{Again: p.Again, Unknown: p.Again}
		p.SafeOffset, p.unsafe = p.Committed, -2
		if first < p.Committed {
			p.Unverified = []Range{{first, p.Committed - 1}}
		}
		p.Why = fmt.Sprintf("Kafka keeps no offset of the group, and no record from offset %d on has a marker: none was handled, or their markers are all gone", first)
	}
	if nowhere && gone > 0 {
		return bad("topic", "Kafka keeps no offset of the group on topic %s, and no record there has a marker of it: it has never handled the topic, or all of its markers are gone", t.Topic)
	}
	if gone > 0 {
		r.answer.Warnings = append(r.answer.Warnings, fmt.Sprintf("Kafka keeps no offsets of group %s on %s of %s: it begins there by its reset policy, and is judged up to the highest record that has a marker.",
			r.answer.Group, number.Of(int64(gone), "partition"), t.Topic))
	}
	return nil
}

// unread is what was not looked up: what the reader has left, and the batch.
func (r *verification) unread(left []kafka.Span, batch []*kgo.Record) []kafka.Span {
	ends := map[int32]int64{}
	for _, record := range batch {
		ends[record.Partition] = record.Offset + 1
	}
	for _, s := range left {
		ends[s.Partition] = s.To
	}
	var out []kafka.Span
	for id, end := range ends {
		if from := r.parts[id].next; from < end {
			out = append(out, kafka.Span{Partition: id, From: from, To: end})
		}
	}
	return out
}

// leave notes offsets of which nothing is known.
func (r *verification) leave(s kafka.Span, why string) {
	p := r.parts[s.Partition]
	p.Again += s.To - s.From
	p.Unknown += s.To - s.From
	p.Why = fmt.Sprintf("offsets %d to %d: %s", s.From, s.To-1, why)
	p.Unverified = append(p.Unverified, Range{s.From, s.To - 1})
	p.SafeOffset = p.Committed
	p.unsafe = -2 // no time can be told
}

// lookUp looks records up and counts them.
func (r *verification) lookUp(ctx context.Context, records []*kgo.Record) error {
	if len(records) == 0 {
		return nil
	}
	deliveries := make([]postgres.Delivery, 0, len(records))
	compares := slices.ContainsFunc(r.Markers, Markers.ComparesPayloads)
	var anonymous []*kgo.Record
	for _, record := range records {
		id, ok := r.EventID(record)
		if !ok || !r.Markers[0].Takes(id) {
			anonymous = append(anonymous, record)
			continue
		}
		d := postgres.Delivery{EventID: id, Partition: record.Partition, Offset: record.Offset}
		if compares {
			sum := sha256.Sum256(record.Value)
			d.PayloadHash = int64(binary.BigEndian.Uint64(sum[:]))
		}
		deliveries = append(deliveries, d)
	}
	findings, err := r.find(ctx, deliveries)
	if err != nil {
		return err
	}
	// What has no id is judged in its place, so that times run upward.
	i, f := 0, 0
	for _, record := range records {
		p := r.parts[record.Partition]
		p.pass(record)
		if len(anonymous) > 0 && anonymous[0] == record {
			anonymous = anonymous[1:]
			r.anonymous(p, record)
			continue
		}
		var finding *postgres.Finding
		if f < len(findings) && findings[f].Delivery == i {
			finding = &findings[f]
			f++
		}
		r.judge(p, record, deliveries[i].EventID, finding)
		i++
	}
	r.out.Records += int64(len(records))
	return nil
}

// find asks every shard, the next one for what the last has not.
func (r *verification) find(ctx context.Context, deliveries []postgres.Delivery) ([]postgres.Finding, error) {
	findings, err := r.Markers[0].Find(ctx, r.topic.Topic, deliveries)
	for _, shard := range r.Markers[1:] {
		if err != nil {
			return nil, err
		}
		var missing []postgres.Delivery
		var places []int
		for i, f := range findings {
			if !f.Marked {
				missing, places = append(missing, deliveries[f.Delivery]), append(places, i)
			}
		}
		if len(missing) == 0 {
			break
		}
		var more []postgres.Finding
		if more, err = shard.Find(ctx, r.topic.Topic, missing); err != nil {
			return nil, err
		}
		silent := make([]bool, len(missing)) // plainly marked there
		for i := range silent {
			silent[i] = true
		}
		for _, f := range more {
			silent[f.Delivery] = false
			if f.Marked {
				at := places[f.Delivery]
				f.Delivery = findings[at].Delivery
				findings[at] = f
			}
		}
		for i, is := range silent {
			if is {
				findings[places[i]].Delivery = -1
			}
		}
		findings = slices.DeleteFunc(findings, func(f postgres.Finding) bool { return f.Delivery < 0 })
	}
	slices.SortFunc(findings, func(a, b postgres.Finding) int { return a.Delivery - b.Delivery })
	return findings, err
}

// anonymous counts a record without an event id.
func (r *verification) anonymous(p *verifiedPartition, record *kgo.Record) {
	r.out.WithoutID++
	p.Unknown++
	p.Why = "of records without an event id nothing can be told"
	p.risk(record.Offset)
	for _, h := range record.Headers {
		if len(r.headers) < examples {
			r.headers[h.Key] = true
		}
	}
}

// judge counts a record; finding is nil where its own marker is there.
func (r *verification) judge(p *verifiedPartition, record *kgo.Record, id string, finding *postgres.Finding) {
	if finding != nil && !finding.Marked {
		if r.seen.seen(id) {
			// The first of its kind writes the marker that protects this one.
			p.Protected++
			r.twin(Twin{EventID: id, At: place(record.Topic, record.Partition, record.Offset)})
			return
		}
		p.Twice++
		p.risk(record.Offset)
		if p.marked {
			r.unmarked(record)
			p.since++
		}
		return
	}
	p.Protected++
	p.marked = true
	if p.CommitGone && (finding == nil || !finding.Elsewhere) { // else the marker is of a record before
		p.handled, p.since = &handledTo{record.Offset + 1, p.Counts, p.SafeOffset, p.unsafe, p.Why}, 0
	}
	r.agreed++
	if finding == nil {
		if !r.Markers[0].KeepsOffsets() && r.seen.seen(id) {
			r.twin(Twin{EventID: id, At: place(record.Topic, record.Partition, record.Offset)})
		}
		return
	}
	at, other := place(record.Topic, record.Partition, record.Offset), ""
	if r.Markers[0].KeepsOffsets() {
		other = place(cmp.Or(finding.Topic, record.Topic), finding.Partition, finding.Offset)
	}
	if finding.Elsewhere {
		r.twin(Twin{EventID: id, At: at, Other: other})
	}
	if finding.OtherPayload {
		if r.out.Conflicts++; len(r.out.SomeConflicts) < examples {
			r.out.SomeConflicts = append(r.out.SomeConflicts, Twin{EventID: id, At: at, Other: other})
		}
	}
}

// place names a record.
func place(topic string, partition int32, offset int64) string {
	return fmt.Sprintf("%s/%d@%d", topic, partition, offset)
}

func (r *verification) twin(t Twin) {
	if r.out.Twins++; len(r.out.SomeTwins) < examples {
		r.out.SomeTwins = append(r.out.SomeTwins, t)
	}
}

func (r *verification) unmarked(record *kgo.Record) {
	r.out.Unmarked++
	list := r.out.SomeUnmarked
	for i := range list {
		if u := &list[i]; u.Topic == record.Topic && u.Partition == record.Partition && u.Last+1 == record.Offset {
			u.Last = record.Offset
			return
		}
	}
	if len(list) < examples {
		r.out.SomeUnmarked = append(list, UnmarkedRange{record.Topic, record.Partition, Range{record.Offset, record.Offset}})
	}
}

// pass notes a record's place and time.
func (p *verifiedPartition) pass(record *kgo.Record) {
	p.Again++
	p.next = record.Offset + 1
	p.latest = max(p.latest, record.Timestamp.UnixMilli())
	if p.first < 0 {
		p.first, p.firstTime = record.Offset, record.Timestamp.UnixMilli()
	}
}

// risk notes that handling the record just passed again may apply it twice.
func (p *verifiedPartition) risk(offset int64) {
	p.SafeOffset, p.unsafe = offset+1, p.latest
}

// conclude tells the earliest time to which a reset is safe: Kafka resets to
// the first record whose timestamp is not earlier, so it lies after those of
// every record up to the last that is not protected.
func (p *verifiedPartition) conclude() {
	at := p.unsafe + 1
	switch {
	case p.first < 0 || p.unsafe == -2 || p.SafeOffset >= p.Committed:
		return
	case p.unsafe < 0:
		at = p.firstTime
	}
	t := time.UnixMilli(at).UTC()
	p.SafeTime = &t
	if p.Gone == nil && p.Twice > 0 {
		p.Gone = []Range{{p.first, p.SafeOffset - 1}}
	}
}

func (r *verification) report() {
	if r.Progress == nil {
		return
	}
	done := r.done
	for _, p := range r.parts {
		done += p.next - max(p.Target, p.LogStart)
	}
	r.Progress(Progress{Done: done, Total: r.total, Records: r.out.Records, Elapsed: r.Now().Sub(r.began)})
}

// pace waits until no more records were read than the limit allows.
func (r *verification) pace(ctx context.Context) error {
	if r.RateLimit <= 0 {
		return ctx.Err()
	}
	due := r.began.Add(time.Duration(float64(r.out.Records) / r.RateLimit * float64(time.Second)))
	wait := due.Sub(r.Now())
	if wait <= 0 {
		return ctx.Err()
	}
	select {
	case <-time.After(wait):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
