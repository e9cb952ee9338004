package alerts

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	promlabels "github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/value"

	"oncewatch/alerts/ruletest"
)

var rounds = flag.Int("rounds", 60, "random worlds of each kind")

// world is a Prometheus: what it scrapes reaches its rules late, and once a
// minute they are evaluated.
type world struct {
	t     *testing.T
	rand  *rand.Rand
	late  time.Duration
	store *ruletest.Store
	rules *ruletest.Evaluator
	names []string // of the alerts

	pending []scraped
	last    map[string]map[uint64]promlabels.Labels // of each target, to end what it no longer serves
	fired   map[string]time.Duration                // alert → when it first fired
	firing  map[string]bool                         // at the last evaluation
}

type scraped struct {
	at time.Duration
	l  promlabels.Labels
	v  float64
}

// point is one series of a target's page.
type point struct {
	labels promlabels.Labels
	value  float64
}

func p(value float64, name string, pairs ...string) point {
	b := promlabels.NewBuilder(promlabels.FromStrings(pairs...))
	b.Set(model.MetricNameLabel, name)
	return point{b.Labels(), value}
}

// epoch is when the worlds begin; a clock's 0 is far from it.
var epoch = time.Unix(1_800_000_000, 0).UTC()

func newWorld(t *testing.T, seed uint64, rules []rulefmt.Rule) *world {
	w := &world{t: t, rand: rand.New(rand.NewPCG(seed, 1)), store: ruletest.NewStore(), last: map[string]map[uint64]promlabels.Labels{}, fired: map[string]time.Duration{}}
	w.rules = ruletest.New(ruletest.NewEngine(time.Minute), w.store, w.store, rules)
	for _, r := range rules {
		if r.Alert != "" {
			w.names = append(w.names, r.Alert)
		}
	}
	return w
}

// between is a random duration, as likely short as long.
func (w *world) between(from, to time.Duration) time.Duration {
	return time.Duration(float64(from) * math.Pow(float64(to)/float64(from), w.rand.Float64()))
}

// scrape stores the page of a target, or that there is none.
func (w *world) scrape(at time.Duration, job, instance string, page []point) {
	target := job + "/" + instance
	up := 0.0
	if page != nil {
		up = 1
	}
	now := map[uint64]promlabels.Labels{}
	put := func(m point) promlabels.Labels {
		b := promlabels.NewBuilder(m.labels)
		b.Set("job", job).Set("instance", instance)
		l := b.Labels()
		w.pending = append(w.pending, scraped{at, l, m.value})
		return l
	}
	put(p(up, "up"))
	for _, point := range page {
		l := put(point)
		now[l.Hash()] = l
	}
	for hash, l := range w.last[target] {
		if _, still := now[hash]; !still {
			w.pending = append(w.pending, scraped{at, l, math.Float64frombits(value.StaleNaN)})
		}
	}
	w.last[target] = now
}

// gone ends the series of a target that is no target any more.
func (w *world) gone(at time.Duration, job, instance string) {
	target := job + "/" + instance
	if w.last[target] == nil {
		return
	}
	up := len(w.pending)
	w.scrape(at, job, instance, nil)
	w.pending[up].v = math.Float64frombits(value.StaleNaN)
	delete(w.last, target)
}

// evaluate brings what has arrived to the rules.
func (w *world) evaluate(at time.Duration) {
	var later []scraped
	for _, s := range w.pending {
		if s.at+w.late <= at {
			w.store.Append(s.l, epoch.Add(s.at).UnixMilli(), s.v)
		} else {
			later = append(later, s)
		}
	}
	w.pending = later
	if err := w.rules.Tick(epoch.Add(at)); err != nil {
		w.t.Fatal(err)
	}
	w.firing = map[string]bool{}
	for _, name := range w.names {
		found, err := w.rules.Firing(name)
		if err != nil {
			w.t.Fatal(err)
		}
		if len(found) > 0 {
			w.firing[name] = true
			if _, before := w.fired[name]; !before {
				w.fired[name] = at
			}
		}
	}
}

// exporter is what is seen of one that polls.
type exporter struct {
	poll, skew time.Duration
	started    time.Duration // of the process
	dies       time.Duration // no poll succeeds from then on; never if 0
}

func (e exporter) page(at time.Duration) []point {
	polled := at
	if e.dies > 0 {
		polled = min(at, e.dies)
	}
	success, last := 0.0, 0.0
	if polled-e.started > 2*time.Second { // the first poll has ended
		last = float64(epoch.Add(e.started+(polled-e.started).Truncate(e.poll)+e.skew).UnixMilli()) / 1000
		if at-polled < e.poll {
			success = 1
		}
	}
	return []point{
		p(1, "oncewatch_build_info", "version", "1"),
		p(success, "oncewatch_collector_success", "collector", "markers"),
		p(last, "oncewatch_collector_last_success_timestamp_seconds", "collector", "markers"),
		p(e.poll.Seconds(), "oncewatch_collector_interval_seconds", "collector", "markers"),
	}
}

// Whatever the scrape interval, the poll interval, the clocks, late samples,
// missed scrapes and restarts: no collector that polls is called stale or
// failing, and one that does not is.
func TestStaleOnOtherClocks(t *testing.T) {
	t.Parallel()
	exporterRules := rulesOf(t, "exporter.rules.yml")
	for seed := range uint64(*rounds) {
		w := newWorld(t, seed, exporterRules)
		every := w.between(5*time.Second, 5*time.Minute)
		e := exporter{poll: w.between(5*time.Second, 5*time.Minute), skew: time.Duration((w.rand.Float64()*2 - 1) * float64(time.Minute))}
		if w.rand.IntN(2) == 0 {
			w.late = time.Duration(w.rand.Float64() * float64(5*time.Minute))
		}
		story := fmt.Sprintf("seed %d: polled every %s, scraped every %s, clock off by %s, samples %s late", seed, e.poll, every, e.skew, w.late)
		const end = 3 * time.Hour
		sick := seed%2 == 0
		if sick {
			e.dies = time.Hour + time.Duration(w.rand.Int64N(int64(5*time.Minute)))
		}
		missed, next := 0, time.Duration(w.rand.Int64N(int64(every)))
		for at := time.Duration(0); at <= end; at += time.Minute {
			for ; next <= at; next += every {
				// What a sick one is scraped for must arrive, to be told by it.
				if !sick && missed == 0 && w.rand.IntN(40) == 0 {
					missed = 1 + w.rand.IntN(10)
				}
				if !sick && w.rand.IntN(60) == 0 {
					e.started = next - time.Duration(w.rand.Int64N(int64(4*time.Second)))
				}
				page := e.page(next + time.Duration(w.rand.Int64N(int64(time.Second))))
				if missed > 0 {
					missed, page = missed-1, nil
				}
				w.scrape(next, "oncewatch", "a", page)
			}
			w.evaluate(at)
		}
		stale, failing := w.fired["ProcessedEventsExporterPollStale"], w.fired["ProcessedEventsExporterPollFailing"]
		within := e.dies + 3*e.poll + time.Minute + e.skew + w.late + 2*every + 22*time.Minute
		switch {
		case !sick && stale+failing > 0:
			t.Errorf("%s: stale at %s, failing at %s", story, stale, failing)
		case sick && (stale < e.dies || stale > within):
			t.Errorf("%s, dies at %s: stale at %s, want by %s", story, e.dies, stale, within)
		case sick && (failing < e.dies || failing > within+20*time.Minute):
			t.Errorf("%s, dies at %s: failing at %s", story, e.dies, failing)
		}
	}
}

// process is one life of a consumer.
type process struct {
	name       string
	start, end time.Duration // 0 as the end: it lives on
}

func (p process) alive(at time.Duration) bool { return at >= p.start && (p.end == 0 || at < p.end) }

// group is what is seen of a consumer group and its topic.
type group struct {
	lives   []process
	fixed   bool                           // a name is a target whether its process lives or not
	lag     func(at time.Duration) float64 // of each of three partitions
	commits func(at time.Duration) float64 // committed offset of each
	handled func(p process, at time.Duration) float64
}

// follow scrapes the group and the exporter, and evaluates, until the end.
func (w *world) follow(g group, every, end time.Duration, each func(at time.Duration)) {
	phase := time.Duration(w.rand.Int64N(int64(every)))
	next, missed := phase, 0
	for at := time.Duration(0); at <= end; at += time.Minute {
		for ; next <= at; next += every {
			seen := map[string]bool{}
			for i := len(g.lives) - 1; i >= 0; i-- { // the newest of a name stands for it
				p := g.lives[i]
				if seen[p.name] || p.start > next {
					continue
				}
				seen[p.name] = true
				switch {
				case p.alive(next):
					w.scrape(next, "consumer", p.name, g.consumer(p, next))
				case g.fixed:
					w.scrape(next, "consumer", p.name, nil)
				default:
					w.gone(next, "consumer", p.name)
				}
			}
			if missed == 0 && w.rand.IntN(100) == 0 {
				missed = 1 + w.rand.IntN(3)
			}
			page := g.exporter(next.Truncate(15 * time.Second))
			if missed > 0 {
				missed, page = missed-1, nil
			}
			w.scrape(next, "oncewatch", "x", page)
		}
		w.evaluate(at)
		if each != nil {
			each(at)
		}
	}
}

func (g group) consumer(c process, at time.Duration) []point {
	id := []string{"consumer_group", "g", "topic", "t"}
	return []point{
		p(float64(epoch.Add(c.start).UnixMilli())/1000, "consumer_start_time_seconds", id[:2]...),
		p(g.handled(c, at), "events_handled_total", append(id, "outcome", "processed")...),
		p(0, "events_handled_total", append(id, "outcome", "duplicate")...),
	}
}

func (g group) exporter(at time.Duration) (page []point) {
	members := 0.0
	for _, p := range g.lives {
		if p.alive(at) {
			members++
		}
	}
	page = append(page, p(members, "consumer_group_members", "consumer_group", "g"))
	for _, partition := range []string{"0", "1", "2"} {
		id := []string{"consumer_group", "g", "topic", "t", "partition", partition}
		page = append(page, p(g.lag(at), "consumer_lag", id...), p(g.commits(at), "consumer_committed_offset", id...))
	}
	return page
}

// A consumer that crashes again and again is seen within 15 minutes: whatever
// the period, whether it gets ahead between two crashes or its counters are 0 at
// each scrape, under a name of its own each time or the same.
func TestCrashLoops(t *testing.T) {
	t.Parallel()
	lagRules := rulesOf(t, "lag.rules.yml")
	for seed := range uint64(*rounds) {
		w := newWorld(t, seed, lagRules)
		every := []time.Duration{15 * time.Second, time.Minute}[seed%2]
		period := w.between(2*time.Second, 5*time.Minute)
		down := min(period/4, w.between(200*time.Millisecond, 5*time.Second))
		fixed, ahead := seed/2%2 == 0, seed/4%2 == 0
		story := fmt.Sprintf("seed %d: crashes every %s, down for %s, scraped every %s, one name: %t, gets ahead: %t", seed, period, down, every, fixed, ahead)
		const fault, end = 40 * time.Minute, 70 * time.Minute
		g := group{fixed: fixed, lives: []process{{"c0", -24 * time.Hour, fault}}}
		for start := fault + down; start < end; start += period {
			name := "c0"
			if !fixed {
				name = fmt.Sprint("c", len(g.lives))
			}
			g.lives = append(g.lives, process{name, start, start + period - down})
		}
		stopped := func(at time.Duration) time.Duration { // how long it has not got ahead
			if at < fault || ahead {
				return 0
			}
			return at - fault
		}
		g.lag = func(at time.Duration) float64 { return math.Floor(20 + 3*stopped(at).Seconds()) }
		g.commits = func(at time.Duration) float64 { return math.Floor(3 * (24*time.Hour + at - stopped(at)).Seconds()) }
		g.handled = func(p process, at time.Duration) float64 {
			if stopped(at) > 0 {
				return 0
			}
			return math.Floor(9 * (at - p.start).Seconds())
		}
		w.follow(g, every, end, nil)
		if fired := w.fired["ConsumerStalled"]; fired < fault || fired > fault+15*time.Minute {
			t.Errorf("%s: seen after %s", story, fired-fault)
		}
	}
}

// What is no crash loop, and no standing still, is not called one.
func TestNoCrashLoop(t *testing.T) {
	t.Parallel()
	lagRules := rulesOf(t, "lag.rules.yml")
	day := 24 * time.Hour
	working := func(g *group) {
		g.lag = func(time.Duration) float64 { return 20 }
		g.commits = func(at time.Duration) float64 { return math.Floor(3 * (day + at).Seconds()) }
		g.handled = func(p process, at time.Duration) float64 { return math.Floor(9 * (at - p.start).Seconds()) }
	}
	stories := map[string]func(w *world) group{
		"deployed twice in twenty minutes": func(w *world) (g group) {
			g.fixed = w.rand.IntN(2) == 0
			n, deploys := 1+w.rand.IntN(12), []time.Duration{-day, 40 * time.Minute, 52 * time.Minute, 100 * time.Minute}
			for d, from := range deploys {
				for i := range n {
					name := fmt.Sprint("c", i)
					if !g.fixed {
						name = fmt.Sprint("c", i, "-", d)
					}
					life := process{name, from + time.Duration(i)*10*time.Second, 0}
					if d+1 < len(deploys) {
						life.end = deploys[d+1] + time.Duration(i)*10*time.Second - time.Second
						if !g.fixed {
							life.end += 10 * time.Second // the new one comes first
						}
					}
					g.lives = append(g.lives, life)
				}
			}
			working(&g)
			return g
		},
		"scaled up and down": func(w *world) (g group) {
			g.lives = []process{{"c", -day, 0}}
			for n, at := 0, 20*time.Minute; at < 2*time.Hour; at += 15 * time.Minute {
				for range 1 + w.rand.IntN(8) {
					n++
					g.lives = append(g.lives, process{fmt.Sprint("c", n), at + time.Duration(n%8)*time.Second, at + w.between(5*time.Minute, 14*time.Minute)})
				}
			}
			working(&g)
			return g
		},
		"idle, with a transaction's marker at the end of each partition": func(w *world) (g group) {
			g.lives = []process{{"c", -day, 0}}
			g.lag = func(time.Duration) float64 { return 1 }
			g.commits = func(time.Duration) float64 { return 1000 }
			g.handled = func(process, time.Duration) float64 { return 1000 }
			return g
		},
		"too slow, but at work": func(w *world) (g group) {
			g.lives = []process{{"c", -day, 0}}
			working(&g)
			g.lag = func(at time.Duration) float64 { return math.Floor(20 + at.Seconds()) }
			return g
		},
		"few events, each handled at once": func(w *world) (g group) {
			g.lives = []process{{"c", -day, 0}}
			g.lag = func(at time.Duration) float64 { return float64(int(at/time.Minute) % 8 / 7) }
			g.commits = func(at time.Duration) float64 { return math.Floor(at.Minutes() / 8) }
			g.handled = func(_ process, at time.Duration) float64 { return 3 * math.Floor(at.Minutes()/8) }
			return g
		},
	}
	for name, story := range stories {
		for seed := range uint64(max(1, *rounds/10)) {
			w := newWorld(t, seed, lagRules)
			g := story(w)
			w.follow(g, w.between(15*time.Second, 2*time.Minute), 2*time.Hour, nil)
			if at, fired := w.fired["ConsumerStalled"]; fired {
				t.Errorf("%s (seed %d): ConsumerStalled at %s", name, seed, at)
			}
		}
	}
}
