package retention_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"oncewatch/collectors/retention"
	"oncewatch/deploy/testenv"
)

// When a group's committed offsets are gone, by expiry or deletion, the exposure
// is what it was: the next start at earliest is the replay. That they are gone is
// told, and not where the group has only left the topic.
func TestCommittedOffsetsThatAreGone(t *testing.T) {
	t.Parallel()
	for name, drop := range map[string]func(s *stack, group, topic string){
		"the group is deleted": func(s *stack, group, _ string) {
			resp, err := s.admin.DeleteGroups(s.ctx(), group)
			if err == nil {
				err = resp.Error()
			}
			if err != nil {
				s.Fatal(err)
			}
		},
		"its offsets of one partition are deleted": func(s *stack, group, topic string) {
			var set kadm.TopicsSet
			set.Add(topic, 0)
			resp, err := s.admin.DeleteOffsets(s.ctx(), group, set)
			if err == nil {
				err = resp.Error()
			}
			if err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
				s.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, testenv.Kafka(t).Brokers(), runbookDDL)
			id := strings.NewReplacer("/", "-", " ", "-").Replace(name)
			group, topic := "ledger-"+id, s.topic("payments-"+id, 2, nil)
			s.produce(topic, 2, 100, time.Now().Add(-time.Hour), time.Second)
			consumer{stack: s, group: group, topic: topic}.run()
			s.start()
			s.exporter.kafka.Watch([]string{group}, []string{topic})
			s.look(group, topic)
			s.exec(`DELETE FROM processed_events WHERE partition = 0 AND "offset" < 40`)
			gone := func() *retention.Missing {
				return s.exporter.retained.Latest().(*retention.Snapshot).FindMissing(group, topic)
			}
			if n := total(s.announced(group, topic)); n != 40 {
				t.Fatalf("%d unprotected, want 40", n)
			}
			if m := gone(); m == nil || m.Gone {
				t.Errorf("with commits: %+v", m)
			}
			drop(s, group, topic)
			if n := total(s.announced(group, topic)); n != 40 {
				t.Errorf("%d unprotected without commits, want 40 as before", n)
			}
			if m := gone(); m == nil || !m.Gone || m.Partitions[0] != 0 {
				t.Errorf("without commits: %+v", m)
			}
			if n := s.prove("a start at earliest", group, topic); n != 40 {
				t.Errorf("%d applied twice, want 40", n)
			}
			if m := gone(); m == nil || m.Gone {
				t.Errorf("with commits again: %+v", m)
			}
		})
	}
}
