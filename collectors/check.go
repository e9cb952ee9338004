package collectors

import (
	"context"
	"log/slog"
	"time"

	"oncewatch/collectors/checklist"
	"oncewatch/collectors/logsample"
	"oncewatch/collectors/postgres"
)

// Check polls every source until what it knows is complete, or until the
// context ends, and judges it once. logs is a sample of the consumers' log, or nil.
func Check(ctx context.Context, c Config, logs *logsample.Sample, log *slog.Logger) (checklist.Report, error) {
	c.State.Path = "" // the exporter's own
	e, err := New(c, log, nil)
	if err != nil {
		return checklist.Report{}, err
	}
	defer e.Close()
	// The first round tells which groups and topics the markers are about.
	for e.Once(ctx); ; {
		e.Once(ctx)
		if e.complete() || ctx.Err() != nil {
			break
		}
		select { // what is still being counted needs more polls; give the server a breath
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	facts := e.Facts()
	facts.Logs = logs
	return checklist.NewReport(facts), nil
}

// complete says whether another poll would add nothing.
func (e *Exporter) complete() bool {
	for _, s := range e.stores {
		if m, ok := latest[*postgres.Markers](s.markers); ok && !m.Ready {
			return false
		}
		if d, ok := latest[*postgres.Divergence](s.divergence); ok && d.Compared < 1 {
			return false
		}
	}
	return true
}
