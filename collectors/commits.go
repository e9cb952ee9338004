package collectors

import (
	"slices"
	"sync"
	"time"

	"oncewatch/collectors/kafka"
)

// readCommits are the newest readings of the groups' commits, oldest first. An
// offset that is ahead of the markers means something only where it was read
// before they were.
type readCommits struct {
	mu       sync.Mutex
	readings []readAt
}

type readAt struct {
	*kafka.Groups
	end time.Time // of their poll
}

// enough readings to reach back before the oldest markers that are served.
const keptCommits = 8

func (r *readCommits) add(g *kafka.Groups, end time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readings = append(r.readings, readAt{g, end})
	r.readings = slices.Delete(r.readings, 0, max(0, len(r.readings)-keptCommits))
}

// before is the newest reading that had ended by then; nil where there is none.
func (r *readCommits) before(then time.Time) *kafka.Groups {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range slices.Backward(r.readings) {
		if !one.end.After(then) {
			return one.Groups
		}
	}
	return nil
}
