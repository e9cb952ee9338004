package deploy_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"oncewatch/deploy/testenv"
)

var update = flag.Bool("update", false, "write LICENCES.md anew")

// permitted are the kinds of licences that what is linked into the programs may
// have: none asks for more than its own text.
var permitted = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "public domain"}

// phrases tell a licence by what it alone says; what is behind a licence in a
// file too is another one. "!" stands before what must not be there.
var phrases = map[string][]string{
	"Apache-2.0":    {"apache license version 2.0, january 2004"},
	"BSD-2-Clause":  {"redistribution and use in source and binary forms", "!neither the name", "!may not be used to endorse", "!all advertising materials"},
	"BSD-3-Clause":  {"redistribution and use in source and binary forms", "neither the name", "!all advertising materials"},
	"BSD-4-Clause":  {"redistribution and use in source and binary forms", "all advertising materials"},
	"ISC":           {"permission to use, copy, modify, and"}, // "and distribute", "and/or distribute"
	"MIT":           {"permission is hereby granted, free of charge"},
	"public domain": {"into the public domain"},
	"MPL-2.0":       {"mozilla public license version 2.0"},
	"GPL or LGPL":   {"general public license as published"},
	"GNU":           {"gnu general public license version"},
	"LGPL":          {"gnu lesser general public license"},
	"AGPL":          {"gnu affero general public license"},
	"CC":            {"creative commons"},
	"BUSL-1.1":      {"business source license"},
	"SSPL":          {"server side public license"},
	"EPL":           {"eclipse public license"},
}

// Every module that is linked into the programs has a licence of a kind that is
// permitted, and LICENCES.md lists them. A new kind fails until somebody has
// read it.
func TestLicences(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Dir}}{{end}}{{end}}", ".", "./reference-consumer")
	cmd.Dir = testenv.Root()
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	modules := map[string]string{} // path → folder
	for line := range strings.Lines(string(out)) {
		if path, dir, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			modules[path] = dir
		}
	}
	if len(modules) < 20 {
		t.Fatalf("%d modules are too few to be true", len(modules))
	}
	var list strings.Builder
	list.WriteString("# Licences\n\nOf what is linked into the programs; written by `go test ./deploy -run TestLicences -update`.\n\n| module | licence |\n|---|---|\n")
	for _, path := range slices.Sorted(maps.Keys(modules)) {
		kinds := licenceOf(t, path, modules[path])
		for _, kind := range kinds {
			if !slices.Contains(permitted, kind) {
				t.Errorf("%s is under %s: read it, and permit it here or do without the module", path, kind)
			}
		}
		fmt.Fprintf(&list, "| %s | %s |\n", path, strings.Join(kinds, ", "))
	}
	file := filepath.Join(testenv.Root(), "deploy", "LICENCES.md")
	if *update {
		if err := os.WriteFile(file, []byte(list.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil || string(have) != list.String() {
		t.Errorf("deploy/LICENCES.md is not up to date (%v): go test ./deploy -run TestLicences -update", err)
	}
}

// licenceOf is the kinds of licence in a module's folder.
func licenceOf(t *testing.T, path, dir string) []string {
	t.Helper()
	kinds := map[string]bool{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		name := strings.ToUpper(e.Name())
		if e.IsDir() || !strings.HasPrefix(name, "LICEN") && !strings.HasPrefix(name, "COPYING") && !strings.HasPrefix(name, "UNLICENSE") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		plain := strings.ToLower(strings.Join(strings.Fields(string(text)), " "))
		known := false
		for kind, says := range phrases {
			is := true
			for _, phrase := range says {
				without, not := strings.CutPrefix(phrase, "!")
				is = is && strings.Contains(plain, without) != not
			}
			if is {
				kinds[kind], known = true, true
			}
		}
		if !known {
			t.Errorf("%s: %s is no licence that is known", path, e.Name())
		}
	}
	if len(kinds) == 0 {
		t.Errorf("%s has no licence", path)
	}
	return slices.Sorted(maps.Keys(kinds))
}
