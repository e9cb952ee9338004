package collectors

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"oncewatch/collectors/poll"
	"oncewatch/collectors/postgres"
)

// store is one database's pollers.
type store struct {
	*postgres.Store
	title                      string // in the sources' IDs; empty where it is the only one
	markers, table, divergence *poll.Poller
}

// labels gives each value of the label database to one store, so that two
// never export the same series. The name is often known only
// once the database has answered.
type labels struct {
	mu    sync.Mutex
	owner map[string]int
}

// claim gives the label to the store, or says which other one has it.
func (l *labels) claim(database string, store int) (owner int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if other, ok := l.owner[database]; ok {
		return other
	}
	for old, who := range l.owner {
		if who == store {
			delete(l.owner, old) // the database has another name than before
		}
	}
	l.owner[database] = store
	return store
}

// ownSeries is a store's source that yields nothing while another store has
// its label.
type ownSeries struct {
	poll.Source
	labels *labels
	store  int
	config postgres.Config
}

// Poll implements poll.Source.
func (o ownSeries) Poll(ctx context.Context) (poll.Snapshot, error) {
	s, err := o.Source.Poll(ctx)
	if err != nil {
		return nil, err
	}
	database := databaseOf(s)
	if owner := o.labels.claim(database, o.store); owner != o.store {
		return nil, &poll.KindError{Kind: "clash", Err: fmt.Errorf("store %d (table %s): its series would be those of store %d, both have the label database=%q: set database in one of them",
			o.store+1, cmp.Or(o.config.Table, "processed_events"), owner+1, database)}
	}
	return s, nil
}

func databaseOf(s poll.Snapshot) string {
	switch s := s.(type) {
	case *postgres.Markers:
		return s.Database
	case *postgres.TableHealth:
		return s.Database
	case *postgres.Divergence:
		return s.Database
	}
	return ""
}
