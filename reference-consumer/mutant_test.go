//go:build linux

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"oncewatch/deploy/testenv"
)

// mutant is a wrong consumer, made from the right one by replacing source
// text.
type mutant struct {
	name  string
	edits []edit
	point string
	// caught by the audit of the kill tests; otherwise the consumer is robust
	// against it.
	caught bool
}

const (
	commitFirst = "\tp.commits.committed(p, b.Next, records[len(records)-1].LeaderEpoch, process.Context())\n\t_ = p.commits.send(p.ctx, nil)\n"
	applyLine   = "\tres, err := p.cfg.Inbox.Apply(ctx, p.cfg.Pool, b)\n"
	// trustKafka: the database's own offset is not looked at.
	decideLine = "	if db != nil && db.topicID != topicID {"
	trustKafka = "	db = nil\n" + decideLine
	effectsIf  = "	if err := in.effects(ctx, s, b, p, handled); err != nil {"
	markLine   = "	handled, err := in.mark(ctx, s, b, p)\n"

	effectsFirst = `	unmarked := make([]Handled, len(b.Events))
	for i := range p.dead {
		unmarked[i].Outcome = DeadLettered
	}
	if _, err := s.conn.Exec(ctx, "BEGIN"); err != nil {
		return Result{}, err
	}
	if err := s.conn.QueryRow(ctx, stateSQL).Scan(&s.state); err != nil {
		return Result{}, err
	}
	if err := in.effects(ctx, s, b, p, unmarked); err != nil {
		return Result{}, err
	}
`
)

// edit of one file.
type edit struct{ path, from, to string }

var mutants = []mutant{
	{"offset before database, database's offset ignored", []edit{
		{"stream/partition.go", applyLine, commitFirst + applyLine},
		{"stream/reconcile.go", decideLine, trustKafka},
	}, "after_marker", true},
	// The wrong order alone is healed by the offset in the database.
	{"offset before database", []edit{
		{"stream/partition.go", applyLine, commitFirst + applyLine},
	}, "after_marker", false},
	{"marker and effect in two transactions", []edit{
		{"inbox/attempt.go", effectsIf, "	if _, err := s.conn.Exec(ctx, \"COMMIT\"); err != nil {\n		return Result{}, err\n	}\n	if _, err := s.conn.Exec(ctx, \"BEGIN\"); err != nil {\n		return Result{}, err\n	}\n" + effectsIf},
	}, "before_db_commit", true},
	// The effects of all events run before the markers are asked.
	{"marker after the effect", []edit{
		{"inbox/attempt.go", markLine, effectsFirst + markLine},
		{"inbox/attempt.go", effectsIf, "	if err != nil {"},
	}, "after_db_commit", true},
}

// The kill tests catch what they are for: each mutant loses or doubles.
func TestMutantsAreCaught(t *testing.T) {
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			binary := build(t, m)
			s := newStage(t, testenv.Postgres(t), fake(t), "payments", 2)
			err := killAt(s, binary, m.point, 3)
			switch {
			case m.caught && err == nil:
				t.Error("the mutant survived")
			case m.caught:
				t.Logf("caught: %v", err)
			case err != nil:
				t.Errorf("not robust against it: %v", err)
			}
		})
	}
}

// build compiles this test binary with the mutated files in place of the
// right ones.
func build(t *testing.T, m mutant) string {
	t.Helper()
	dir := t.TempDir()
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for _, e := range m.edits {
		abs, err := filepath.Abs(e.path)
		if err != nil {
			t.Fatal(err)
		}
		source := abs
		if already, ok := overlay.Replace[abs]; ok {
			source = already
		}
		text, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), e.from); n != 1 {
			t.Fatalf("%s holds %d times what the mutant replaces: bring the mutant up to date", e.path, n)
		}
		mutated := filepath.Join(dir, strings.ReplaceAll(e.path, "/", "_"))
		if err := os.WriteFile(mutated, []byte(strings.Replace(string(text), e.from, e.to, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[abs] = mutated
	}
	text, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, text, 0o644); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "child.test")
	if out, err := exec.Command("go", "test", "-c", "-overlay", list, "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("build the mutant: %v\n%s", err, out)
	}
	return binary
}
