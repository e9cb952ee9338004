package retention

import (
	"math"
	"strings"
	"testing"
	"time"

	"oncewatch/collectors/kafka"
	"oncewatch/collectors/postgres"
)

const day = 24 * time.Hour

func opt(d time.Duration) kafka.Known[time.Duration] {
	if d == 0 {
		return kafka.Known[time.Duration]{}
	}
	return known(d)
}

// Unlimited and compacted topics are no number of days.
func TestMargins(t *testing.T) {
	for name, c := range map[string]struct {
		topic, worst, oldest, configured, observed time.Duration // 0: not known
		smallest                                   string
		changes                                    string
	}{
		"the runbook's own: 8 days against 7, with the default segment.ms": {
			7 * day, 14 * day, 7*day + 3*time.Hour, 8 * day, 8*day + 5*time.Minute,
			"configured marker retention 8d - worst case of the topic 14d = -6d",
			"retention of the markers: 8d -> at least 15d 10h; segment.ms of topic payments: 7d -> at most 6h 32m (23520000)",
		},
		"the failure table's: 3 days against 7": {
			7 * day, 7*day + time.Hour, 7 * day, 3 * day, 3 * day,
			"configured marker retention 3d - worst case of the topic 7d 1h = -4d 1h",
			"retention of the markers: 3d -> at least 7d 18h; retention.ms of topic payments: 7d -> at most 2d 16h (230400000)",
		},
		"somebody else prunes sooner": {
			7 * day, 7*day + time.Hour, 7 * day, 8 * day, 3 * day,
			"observed marker retention 3d - worst case of the topic 7d 1h = -4d 1h",
			"what is really kept of the markers (configured: 8d): 3d -> at least 7d 18h; retention.ms of topic payments: 7d -> at most 2d 16h (230400000)",
		},
		"enough": {
			7 * day, 7*day + 6*time.Hour, 7 * day, 8 * day, 8 * day,
			"configured marker retention 8d - worst case of the topic 7d 6h = 18h", "",
		},
		"exactly the factor": {
			10 * day, 10 * day, 9 * day, 11 * day, 11 * day,
			"configured marker retention 11d - topic retention 10d = 1d", "",
		},
		"above the worst case, but not by the factor": {
			7 * day, 7*day + 12*time.Hour, 7 * day, 8 * day, 0,
			"configured marker retention 8d - worst case of the topic 7d 12h = 12h",
			"retention of the markers: 8d -> at least 8d 6h; segment.ms of topic payments: 12h -> at most 6h 32m (23520000)",
		},
		"kept for ever": {
			Unlimited, Unlimited, 300 * day, 8 * day, 0,
			"configured marker retention 8d, topic retention unlimited",
			"retention.ms + segment.ms of topic payments, cleanup.policy delete: unlimited -> at most 7d 6h",
		},
		"a timestamp in the future keeps a segment": {
			7 * day, 8 * day, 60 * day, 10 * day, 0,
			"configured marker retention 10d - oldest record really there 60d = -50d",
			"retention of the markers: 10d -> at least 66d",
		},
		"both settings of the topic too long": {
			7 * day, 14 * day, 0, 2 * day, 0,
			"configured marker retention 2d - worst case of the topic 14d = -12d",
			"retention of the markers: 2d -> at least 15d 10h; retention.ms + segment.ms of topic payments: 14d -> at most 1d 19h",
		},
		"a little beyond the worst case, by the broker's own schedule": {
			7 * day, 14 * day, 14*day + time.Hour, 8 * day, 0,
			"configured marker retention 8d - oldest record really there 14d 1h = -6d 1h",
			"retention of the markers: 8d -> at least 15d 11h; segment.ms of topic payments: 7d -> at most 6h 32m (23520000)",
		},
		"nothing known of the markers": {7 * day, 14 * day, 8 * day, 0, 0, "", ""},
		"nothing known of the topic":   {0, 0, 0, 8 * day, 8 * day, "", ""},
		"configuration of the topic denied": {
			0, 0, 9 * day, 8 * day, 0,
			"configured marker retention 8d - oldest record really there 9d = -1d",
			"retention of the markers: 8d -> at least 9d 22h",
		},
	} {
		n := Numbers{opt(c.topic), opt(c.worst), opt(c.oldest), opt(c.configured), opt(c.observed)}
		smallest := ""
		if all := margins(n); len(all) > 0 {
			smallest = all[0].String()
		}
		if smallest != c.smallest {
			t.Errorf("%s: smallest margin %q, want %q", name, smallest, c.smallest)
		}
		var texts []string
		for _, change := range changes(n, "payments", 1.1) {
			texts = append(texts, change.String())
		}
		if got := strings.Join(texts, "; "); got != c.changes {
			t.Errorf("%s: changes\n %q, want\n %q", name, got, c.changes)
		}
	}
}

// Each change, made, leaves nothing to change.
func TestChangesMend(t *testing.T) {
	for _, topic := range []time.Duration{time.Hour, 7 * day, 30 * day} {
		for _, segment := range []time.Duration{time.Minute, 6 * time.Hour, 7 * day} {
			for _, marker := range []time.Duration{90 * time.Minute, 3 * day, 8 * day, 31 * day} {
				n := Numbers{Topic: known(topic), WorstCase: known(topic + segment), Configured: known(marker)}
				for _, c := range changes(n, "t", 1.1) {
					mended := n
					switch {
					case strings.HasPrefix(c.Setting, "retention of the markers"):
						mended.Configured = known(c.To)
					case strings.HasPrefix(c.Setting, "segment.ms of"):
						mended.WorstCase = known(topic + c.To)
					case strings.HasPrefix(c.Setting, "retention.ms of"):
						mended.Topic, mended.WorstCase = known(c.To), known(c.To+segment)
					case strings.HasPrefix(c.Setting, "retention.ms + segment.ms of"):
						mended.Topic, mended.WorstCase = known(c.To-time.Minute), known(c.To)
					default:
						t.Errorf("unknown setting %q", c.Setting)
					}
					if again := changes(mended, "t", 1.1); len(again) > 0 {
						t.Errorf("topic %s, segment %s, markers %s: after %q: %v", topic, segment, marker, c, again)
					}
				}
			}
		}
	}
}

func TestNumbers(t *testing.T) {
	part := func(start, end int64, age time.Duration) kafka.Partition {
		p := kafka.Partition{Start: known(start), End: known(end)}
		if age != 0 {
			p.Oldest = known(t0.Add(-age))
		}
		return p
	}
	for name, c := range map[string]struct {
		partitions []kafka.Partition
		want       kafka.Known[time.Duration]
	}{
		"the oldest of all":            {[]kafka.Partition{part(0, 9, day), part(0, 9, 3*day), part(0, 9, 2*day)}, known(3 * day)},
		"an empty partition":           {[]kafka.Partition{part(9, 9, 0), part(0, 9, day)}, known(day)},
		"a partition that has no time": {[]kafka.Partition{part(0, 9, 3*day), part(0, 9, 0)}, opt(0)},
		"a partition without a leader": {[]kafka.Partition{part(0, 9, 3*day), {}}, opt(0)},
		"all empty":                    {[]kafka.Partition{part(9, 9, 0)}, opt(0)},
		"a timestamp in the future":    {[]kafka.Partition{part(0, 9, -day)}, known(time.Duration(0))},
	} {
		n := numbers(t0, &postgres.Markers{}, &postgres.Series{Pruning: true, ObservedRetention: 5 * day}, &kafka.Topic{
			Partitions: c.partitions,
			Retention:  known(kafka.Retention{Seconds: known(604800.0), WorstCaseSeconds: known(math.Inf(1))}),
		})
		got := n.OldestRecord
		if got.OK != c.want.OK || got.OK && got != c.want {
			t.Errorf("%s: oldest record %+v, want %+v", name, got, c.want)
		}
		if n.Topic != known(7*day) || n.WorstCase.OK || n.Observed != known(5*day) || n.Configured.OK {
			t.Errorf("%s: %+v", name, n)
		}
	}
	if n := numbers(t0, &postgres.Markers{}, &postgres.Series{}, nil); n != (Numbers{}) {
		t.Errorf("of a topic that is not known: %+v", n)
	}
}
