package prune

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/reference-consumer/topicconfig"
)

// AssertRetention is the name that waives the check of the retention.
const AssertRetention = "marker-retention"

// RefusedError says why nothing is pruned.
type RefusedError struct{ Lines []string }

func (e *RefusedError) Error() string { return strings.Join(e.Lines, "\n") }

// assertRetention compares the retention with the worst case of every topic
// that has markers: retention.ms is only when a record may go, its segment
// goes up to segment.ms later.
func (p *pruner) assertRetention(ctx context.Context, conn *pgx.Conn) error {
	if slices.Contains(p.cfg.Allow, AssertRetention) {
		return nil
	}
	topics, err := p.topics(ctx, conn)
	if err != nil {
		return err
	}
	if len(topics) == 0 {
		return nil
	}
	client, err := kgo.NewClient(p.cfg.Client...)
	if err != nil {
		return fmt.Errorf("create the Kafka client: %w", err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	limits, err := topicconfig.Retentions(ctx, kadm.NewClient(client), topics...)
	if err != nil {
		return fmt.Errorf("%w (--allow=%s prunes without knowing)", err, AssertRetention)
	}
	var lines []string
	for _, t := range topics {
		r := limits[t]
		least := time.Duration(topicconfig.Margin * float64(r.Worst))
		switch {
		case r.Unlimited:
			lines = append(lines, fmt.Sprintf("%s: topic %s keeps records for ever, so no marker may go: limit its retention.ms, or waive with --allow=%s", AssertRetention, t, AssertRetention))
		case p.cfg.Retention < least:
			lines = append(lines, fmt.Sprintf("%s: topic %s may keep records for %s (retention.ms %s + segment.ms), 1.1 × that is more than --retention=%s: raise --retention to %s, lower the topic's segment.ms, or waive with --allow=%s",
				AssertRetention, t, hours(r.Worst), hours(r.Time), hours(p.cfg.Retention), hours(least), AssertRetention))
		}
	}
	if len(lines) > 0 {
		return &RefusedError{lines}
	}
	return nil
}

// topics that have markers: those configured and those with progress. Asking
// the markers themselves would read the whole table.
func (p *pruner) topics(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	set := map[string]bool{}
	for _, t := range p.cfg.Topics {
		set[t] = true
	}
	rows, err := conn.Query(ctx, "SELECT DISTINCT topic FROM consumer_progress")
	if err != nil {
		return nil, fmt.Errorf("read the topics with progress (run `reference-consumer migrate`): %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read the topics with progress (run `reference-consumer migrate`): %w", err)
	}
	for _, t := range found {
		set[t] = true
	}
	return slices.Sorted(maps.Keys(set)), nil
}

func hours(d time.Duration) string {
	if d >= 48*time.Hour {
		return fmt.Sprintf("%.1fd", d.Hours()/24)
	}
	return d.String()
}
