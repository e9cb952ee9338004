package main

import (
	"bytes"
	"flag"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"oncewatch/collectors/config"
)

var update = flag.Bool("update", false, "write the generated example configuration")

const exampleFile = "deploy/oncewatch.example.yml"

const exampleHead = `# Configuration of oncewatch: every key with its default. Generated from the flags of
# "oncewatch serve"; each key is also --SECTION.KEY and ONCEWATCH_SECTION_KEY, which win
# over this file. A key without a default is commented out, its value in capitals.
#
# Check a file without connecting to anything:
#   oncewatch check --config.file=oncewatch.yml --dry-run

`

const exampleStores = `
# Several databases or tables in one process: this list replaces the section postgres. An
# entry has the keys of that section. Two entries must not have the same label database.
`

// example is the configuration file that belongs to the flags.
func example(t *testing.T) []byte {
	t.Helper()
	parser, err := newParser(&cli{}, &config.Loaded{Lists: []string{"stores"}})
	if err != nil {
		t.Fatal(err)
	}
	var flags []*kong.Flag
	for _, command := range parser.Model.Children {
		if command.Name == "serve" {
			flags = append(flags, command.Flags...)
		}
	}
	for _, flag := range parser.Model.Flags {
		if strings.HasPrefix(flag.Name, "log.") {
			flags = append(flags, flag)
		}
	}
	keys, err := config.Example(flags)
	if err != nil {
		t.Fatal(err)
	}
	stores, err := config.ExampleList("stores", "postgres", flags)
	if err != nil {
		t.Fatal(err)
	}
	for _, flag := range flags {
		key := flag.Name[strings.IndexByte(flag.Name, '.')+1:]
		if !bytes.Contains(keys, []byte(key+":")) || flag.Help == "" {
			t.Errorf("%s is not in the example, or has no help", flag.Name)
		}
	}
	return append([]byte(exampleHead), append(append(keys, exampleStores...), stores...)...)
}

// The example is what the flags say, it loads, and loading it changes nothing.
func TestExampleConfig(t *testing.T) {
	want := example(t)
	if *update {
		if err := os.WriteFile(exampleFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(exampleFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what the flags say: go test . -run TestExampleConfig -update", exampleFile)
	}
	var out, errs strings.Builder
	if code := run(t.Context(), []string{"check", "--config.file=" + exampleFile, "--dry-run"}, &out, &errs); code != 0 {
		t.Errorf("exit %d: %s%s", code, &out, &errs)
	}
	var plain, loaded cli
	for c, args := range map[*cli][]string{&plain: {"serve"}, &loaded: {"serve", "--config.file=" + exampleFile}} {
		parser, err := newParser(c, &config.Loaded{Lists: []string{"stores"}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parser.Parse(args); err != nil {
			t.Fatal(err)
		}
	}
	if !reflect.DeepEqual(plain.Serve, loaded.Serve) || plain.Log != loaded.Log {
		t.Errorf("the example sets something else than the defaults:\n%+v\n%+v", plain.Serve, loaded.Serve)
	}

	// The list of stores loads too, once its comment signs are taken away.
	head, list, ok := strings.Cut(string(got), "# stores:\n")
	if !ok {
		t.Fatal("no list of stores")
	}
	path := t.TempDir() + "/oncewatch.yml"
	text := head + "stores:\n" + strings.ReplaceAll("\n"+list, "\n# ", "\n  ")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if code := run(t.Context(), []string{"check", "--config.file=" + path, "--dry-run"}, &out, &errs); code != 0 {
		t.Errorf("exit %d: %s%s\n%s", code, &out, &errs, text)
	}
}
