// Mutate changes one operator of a package at a time and runs the package's
// tests on it: a mutant that survives is a case that no test has.
//
//	go run ./deploy/mutate ./collectors/poll ./reference-consumer/prune
//
// Mutants are compiled through an overlay; no file of the checkout changes.
// known.txt lists survivors that change nothing, each with the reason.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

//go:embed known.txt
var known string

// swaps are what each operator becomes.
var swaps = map[token.Token][]token.Token{
	token.EQL: {token.NEQ}, token.NEQ: {token.EQL},
	token.LSS: {token.LEQ, token.GEQ}, token.LEQ: {token.LSS, token.GTR},
	token.GTR: {token.GEQ, token.LEQ}, token.GEQ: {token.GTR, token.LSS},
	token.LAND: {token.LOR}, token.LOR: {token.LAND},
	token.ADD: {token.SUB}, token.SUB: {token.ADD},
	token.MUL: {token.QUO}, token.QUO: {token.MUL},
}

// mutant is one change of a file's text.
type mutant struct {
	file     string // as in known.txt: from the root of the checkout
	path     string
	line     int
	at, end  int // bytes that are replaced
	old, new string
	source   string // the line before
}

func (m mutant) String() string {
	return fmt.Sprintf("%s:%d: %s → %s in: %s", m.file, m.line, m.old, m.new, m.source)
}

func main() {
	run := flag.String("run", "", "run only tests that match, as go test does")
	tests := flag.String("tests", "", "package whose tests are run instead of the mutated one's own")
	timeout := flag.Duration("timeout", 3*time.Minute, "time for the tests of one mutant; beyond it the mutant is killed")
	every := flag.Int("every", 1, "take each n-th mutant only")
	list := flag.Bool("list", false, "list the mutants and run nothing")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	survived := 0
	for _, pattern := range flag.Args() {
		n, err := mutate(ctx, pattern, options{run: *run, tests: *tests, timeout: *timeout, every: *every, list: *list})
		if err != nil {
			fmt.Fprintln(os.Stderr, "mutate:", err)
			os.Exit(2)
		}
		survived += n
	}
	if survived > 0 {
		os.Exit(1)
	}
}

type options struct {
	run, tests string
	timeout    time.Duration
	every      int
	list       bool
}

// mutate runs a package's mutants and returns how many survived unexplained.
func mutate(ctx context.Context, pattern string, o options) (survived int, err error) {
	all, err := mutants(ctx, pattern)
	if err != nil {
		return 0, err
	}
	killed, explained := 0, 0
	for i, m := range all {
		if i%max(o.every, 1) != 0 {
			continue
		}
		if o.list {
			fmt.Println(m)
			continue
		}
		if reason := m.reason(); reason != "" {
			explained++
			continue
		}
		switch err := m.try(ctx, pattern, o); {
		case ctx.Err() != nil:
			return survived, ctx.Err()
		case errors.Is(err, errDoesNotCompile):
		case err != nil:
			killed++
		default:
			survived++
			fmt.Println("survived:", m)
		}
	}
	if n := killed + survived; n > 0 {
		fmt.Printf("%s: %d of %d mutants killed (%.0f %%), %d more change nothing\n", pattern, killed, n, 100*float64(killed)/float64(n), explained)
	}
	return survived, nil
}

// reason says why a mutant that survives changes nothing, by known.txt.
func (m mutant) reason() string {
	for line := range strings.Lines(known) {
		what, why, ok := strings.Cut(strings.TrimSpace(line), " # ")
		if ok && what == fmt.Sprintf("%s: %s → %s in: %s", m.file, m.old, m.new, m.source) {
			return why
		}
	}
	return ""
}

var errDoesNotCompile = errors.New("does not compile")

// try runs the tests on a mutant: nil where they all pass.
func (m mutant) try(ctx context.Context, pattern string, o options) error {
	dir, err := os.MkdirTemp("", "mutate-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	text, err := os.ReadFile(m.path)
	if err != nil {
		return err
	}
	changed, overlay := filepath.Join(dir, filepath.Base(m.path)), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(changed, []byte(string(text[:m.at])+m.new+string(text[m.end:])), 0o600); err != nil {
		return err
	}
	doc, err := json.Marshal(map[string]any{"Replace": map[string]string{m.path: changed}})
	if err != nil {
		return err
	}
	if err := os.WriteFile(overlay, doc, 0o600); err != nil {
		return err
	}
	if err := exec.CommandContext(ctx, "go", "build", "-overlay="+overlay, pattern).Run(); err != nil {
		return errDoesNotCompile
	}
	if o.tests != "" {
		pattern = o.tests
	}
	args := []string{"test", "-overlay=" + overlay, "-count=1", "-failfast", "-vet=off", "-timeout=" + o.timeout.String()}
	if o.run != "" {
		args = append(args, "-run="+o.run)
	}
	return exec.CommandContext(ctx, "go", append(args, pattern)...).Run()
}

// mutants lists those of a package's files, tests apart.
func mutants(ctx context.Context, pattern string) ([]mutant, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-json=Dir,GoFiles,Module", pattern).Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w", pattern, err)
	}
	var pkg struct {
		Dir     string
		GoFiles []string
		Module  struct{ Dir string }
	}
	if err := json.Unmarshal(out, &pkg); err != nil {
		return nil, err
	}
	var all []mutant
	for _, name := range pkg.GoFiles {
		path := filepath.Join(pkg.Dir, name)
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		rel, err := filepath.Rel(pkg.Module.Dir, path)
		if err != nil {
			return nil, err
		}
		files := token.NewFileSet()
		tree, err := parser.ParseFile(files, path, text, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		lines := bytes.Split(text, []byte("\n"))
		add := func(at token.Pos, old, new string) {
			p := files.Position(at)
			all = append(all, mutant{file: filepath.ToSlash(rel), path: path, line: p.Line, at: p.Offset, end: p.Offset + len(old), old: old, new: new,
				source: strings.TrimSpace(string(lines[p.Line-1]))})
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BinaryExpr:
				for _, other := range swaps[n.Op] {
					add(n.OpPos, n.Op.String(), other.String())
				}
			case *ast.ReturnStmt:
				if len(n.Results) == 0 {
					break
				}
				if last, ok := n.Results[len(n.Results)-1].(*ast.Ident); ok && last.Name == "err" {
					add(last.Pos(), "err", "nil")
				}
			}
			return true
		})
	}
	return all, nil
}
