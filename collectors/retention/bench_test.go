package retention

import (
	"fmt"
	"testing"

	"oncewatch/collectors/postgres"
)

// A thousand groups on a topic of fifty partitions: sound, and with every
// partition exposed.
func BenchmarkPoll(b *testing.B) {
	for _, exposed := range []bool{false, true} {
		b.Run(fmt.Sprintf("partitions=50000/exposed=%v", exposed), func(b *testing.B) {
			w := newWorld(b)
			offsets := make([]int64, 50)
			handled := map[int64]postgres.Handled{}
			for p := range offsets {
				w.partition("t", int32(p), 500, 1000, t0)
				offsets[p] = 1000
				handled[int64(p)] = from(0, gone(0, 400, t0))
				if exposed {
					handled[int64(p)] = from(0, gone(0, 600, t0))
				}
			}
			var series []postgres.Series
			for g := range 1000 {
				series = append(series, marks(fmt.Sprintf("group-%d", g), "t", handled))
			}
			w.commit("group-0", "t", offsets...)
			for _, s := range series[1:] {
				g := *w.groups.Groups[0]
				g.Name = s.Group
				w.groups.Groups = append(w.groups.Groups, &g)
			}
			w.table(series...)
			w.settle()
			for b.Loop() {
				w.poll()
			}
		})
	}
}
