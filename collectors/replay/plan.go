package replay

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// WritePlan writes the offsets to reset to as Kafka's own tool reads them with
// --reset-offsets --from-file: topic,partition,offset. No offset is below what
// is safe, and none above where the group stands, which would skip records.
func (a *Answer) WritePlan(w io.Writer) error {
	out := csv.NewWriter(w)
	for _, t := range a.Topics {
		for _, p := range t.Partitions {
			if p.lost {
				return fmt.Errorf("topic %s, partition %d: there is no offset for the plan: %s", t.Topic, p.Partition, p.Why)
			}
			if err := out.Write([]string{t.Topic, strconv.Itoa(int(p.Partition)), strconv.FormatInt(p.plan(), 10)}); err != nil {
				return fmt.Errorf("write the plan: %w", err)
			}
		}
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return fmt.Errorf("write the plan: %w", err)
	}
	return nil
}

// plan is the partition's offset in the plan. A commit outside the log becomes
// the log's nearest end, as Kafka's tool would have it.
func (p *Partition) plan() int64 {
	at := min(max(p.Target, p.SafeOffset), max(p.Committed, p.LogStart))
	return min(max(at, p.LogStart), p.LogEnd)
}

// Command puts the question to the exporter at an address, and has the plan
// written.
func (q Question) Command(exporter string) string {
	words := []string{"oncewatch replay --exporter=" + ShellWord(exporter)}
	for _, f := range [][2]string{{"group", q.Group}, {"topic", q.Topic}, {"database", q.Database}, {"to", q.To}} {
		if f[1] != "" {
			words = append(words, "--"+f[0]+"="+ShellWord(f[1]))
		}
	}
	return strings.Join(append(words, "--plan=plan.csv"), " ")
}

// ShellWord is a name as a shell takes it for one word.
func ShellWord(name string) string {
	if name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:", r)
	}) {
		return name
	}
	return "'" + strings.ReplaceAll(name, "'", `'\''`) + "'"
}
