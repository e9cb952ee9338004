package matrix

import (
	"cmp"
	"flag"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"oncewatch/deploy/testenv"
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(testenv.Main(m))
}

var (
	which    = flag.String("matrix", "", "scenarios to play: all, or names with commas; default: a representative part")
	parallel = flag.Int("matrix.parallel", 14, "scenarios at the same time")
	speed    = flag.Int("matrix.speed", 30, "how many times faster than as shipped the rules run")
	write    = flag.Bool("matrix.write", false, "write MATRIX.md; with -matrix=all")
)

// part is the representative part of the matrix: faults of markers, of the
// producer, of the exporter and its permissions, and a scenario of health, with
// less time before and after.
var part = []string{"short-retention", "poison", "exporter-down", "permission-revoked", "consumer-restart"}

func (sc scenario) brief() scenario {
	sc.before, sc.after = 10, 5
	if sc.want == "" {
		sc.after = 20
	}
	return sc
}

// TestMatrix plays every scenario and judges each alert.
func TestMatrix(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than a minute")
	}
	all := slices.Concat(faults, health)
	chosen := all
	if *which != "all" {
		names := part
		if *which != "" {
			names = strings.Split(*which, ",")
		}
		chosen = nil
		for _, name := range names {
			i := slices.IndexFunc(all, func(sc scenario) bool { return sc.name == name })
			if i < 0 {
				t.Fatalf("-matrix=%s: no such scenario", name)
			}
			chosen = append(chosen, all[i])
		}
	}
	if *which == "" {
		for i := range chosen {
			chosen[i] = chosen[i].brief()
		}
	}
	b := newBench(t)
	began := time.Now()
	results := map[string]*result{}
	var mu sync.Mutex
	// The long ones first: the run is over when the last one is. A scenario waits
	// most of its time: far more of them than processors can be played at once.
	queue := slices.Clone(chosen)
	slices.SortStableFunc(queue, func(a, b scenario) int { return int(b.lasts() - a.lasts()) })
	var playing errgroup.Group
	playing.SetLimit(*parallel)
	for _, sc := range queue {
		playing.Go(func() error {
			t.Run(sc.name, func(t *testing.T) {
				r := b.play(t, sc)
				mu.Lock()
				defer mu.Unlock()
				results[sc.name] = r
			})
			return nil
		})
	}
	_ = playing.Wait()
	var ordered []*result
	for _, sc := range chosen {
		if r := results[sc.name]; r != nil {
			ordered = append(ordered, r)
		}
	}
	took := time.Since(began)
	text := report(ordered, quiet(ordered), took)
	t.Log("\n" + text)
	if !*write {
		return
	}
	if *which != "all" || len(ordered) < len(all) {
		t.Fatal("not written: not every scenario was played")
	}
	if err := os.WriteFile("MATRIX.md", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// lasts is about how long a scenario takes.
func (sc scenario) lasts() time.Duration {
	before := minutes(cmp.Or(sc.before, defaultBefore))
	if sc.want == "" {
		return before + minutes(cmp.Or(sc.after, watchHealthy))
	}
	return before + sc.limit() + minutes(cmp.Or(sc.after, defaultAfter))
}
