package produce

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/reference-consumer/header"
)

func TestIDs(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	g := NewIDs(func() time.Time { return now })
	last := ""
	for i := range 20_000 { // more than fit into one millisecond
		if i == 15_000 {
			now = now.Add(-time.Hour) // a clock that goes back
		}
		id, err := g.Next()
		if err != nil {
			t.Fatal(err)
		}
		u, err := uuid.Parse(id)
		if err != nil || u.Version() != 7 || u.Variant() != uuid.RFC4122 {
			t.Fatalf("%s: version %d, variant %v, %v", id, u.Version(), u.Variant(), err)
		}
		if id <= last {
			t.Fatalf("%s after %s: ids must grow", id, last)
		}
		last = id
	}
	if err := g.assertNew(last); err == nil {
		t.Error("an id used twice must be refused")
	}
}

func TestRunWithFaults(t *testing.T) {
	k, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	client := []kgo.Opt{kgo.SeedBrokers(k.ListenAddrs()...)}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	stats, err := Run(ctx, Config{Client: client, Topic: "p", Partitions: 4, Count: 2000, Duplicates: 0.05, ReuseIDs: 0.01, Gaps: 0.02, Poison: 0.01, Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	if stats.Events+stats.Gaps != 2000 || stats.Duplicates == 0 || stats.ReusedIDs == 0 || stats.Gaps == 0 || stats.Poison == 0 {
		t.Errorf("%+v: want some of each", stats)
	}
	cl, err := kgo.NewClient(append(client, kgo.ConsumeTopics("p"))...)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ids, accounts := map[string]int{}, map[string]int32{}
	sequences := map[int32]map[int64]int{}
	n := int64(0)
	for want := stats.Events + stats.Duplicates; n < want; {
		f := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%d records, want %d", n, want)
		}
		f.EachRecord(func(r *kgo.Record) {
			n++
			if p, ok := accounts[string(r.Key)]; ok && p != r.Partition {
				t.Errorf("account %s is in partitions %d and %d", r.Key, p, r.Partition)
			}
			accounts[string(r.Key)] = r.Partition
			for _, h := range r.Headers {
				switch h.Key {
				case header.EventID:
					ids[string(h.Value)]++
				case header.Sequence:
					seq, err := strconv.ParseInt(string(h.Value), 10, 64)
					if err != nil {
						t.Fatal(err)
					}
					if sequences[r.Partition] == nil {
						sequences[r.Partition] = map[int64]int{}
					}
					sequences[r.Partition][seq]++
				}
			}
		})
	}
	var missing, twice int64
	for _, seen := range sequences {
		var highest int64
		for seq, times := range seen {
			highest = max(highest, seq)
			twice += int64(times - 1)
		}
		missing += highest - int64(len(seen))
	}
	if twice != stats.Duplicates || missing > stats.Gaps || missing < stats.Gaps-4 { // a gap at the end does not show
		t.Errorf("sequences: %d twice, %d missing, want %d and about %d", twice, missing, stats.Duplicates, stats.Gaps)
	}
	if distinct := int64(len(ids)); distinct > stats.Events-stats.ReusedIDs+stats.Gaps || distinct < stats.Events-stats.ReusedIDs {
		t.Errorf("%d distinct ids of %d events, %d left out, %d reused", distinct, stats.Events, stats.Gaps, stats.ReusedIDs)
	}
}

func TestRate(t *testing.T) {
	k, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	start := time.Now()
	stats, err := Run(t.Context(), Config{Client: []kgo.Opt{kgo.SeedBrokers(k.ListenAddrs()...)}, Topic: "p", Partitions: 1, Count: 200, Rate: 400})
	if err != nil || stats.Events != 200 {
		t.Fatal(stats, err)
	}
	if took := time.Since(start); took < 400*time.Millisecond {
		t.Errorf("200 events at 400/s took %s", took)
	}
}
