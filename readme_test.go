package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"oncewatch/collectors/config"
	"oncewatch/deploy/testenv"
)

// readmeCommands are the command lines of a README's code blocks, without
// comments and environment variables in front.
func readmeCommands(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var commands []string
	fenced := false
	for line := range strings.Lines(strings.ReplaceAll(string(text), "\\\n", " ")) {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
			continue
		}
		if !fenced && !strings.HasPrefix(line, "    ") {
			continue
		}
		line, _, _ = strings.Cut(strings.TrimSpace(line), " #")
		line = strings.TrimSpace(regexp.MustCompile(`[;|>&].*`).ReplaceAllString(line, ""))
		for strings.Contains(strings.SplitN(line, " ", 2)[0], "=") && strings.Contains(line, " ") {
			line = strings.TrimSpace(strings.SplitN(line, " ", 2)[1])
		}
		if first, _, _ := strings.Cut(line, " "); first == "go" || first == "oncewatch" || first == "reference-consumer" {
			commands = append(commands, line)
		}
	}
	return commands
}

// Every command of the READMEs is one that can be run: its flags exist, its
// package is there, and -run and -bench name something in it.
func TestReadmeCommands(t *testing.T) {
	pages, err := filepath.Glob("*/README.md")
	if err != nil {
		t.Fatal(err)
	}
	var commands []string
	for _, page := range append(pages, "README.md") {
		found := readmeCommands(t, page)
		if len(found) == 0 {
			t.Errorf("%s: no command found", page)
		}
		commands = append(commands, found...)
	}
	consumer := testenv.Build(t, "./reference-consumer")
	for _, command := range commands {
		words := strings.Fields(command)
		switch {
		case words[0] == "oncewatch":
			parses(t, command, words[1:])
		case strings.HasPrefix(command, "go run . "):
			parses(t, command, words[3:])
		case words[0] == "reference-consumer":
			consumerTakes(t, consumer, command, words[1:])
		case strings.HasPrefix(command, "go test "):
			namesTests(t, command, words[2:])
		case strings.HasPrefix(command, "go build "), strings.HasPrefix(command, "go tool "):
		default:
			t.Errorf("%s: nothing checks a command of this kind", command)
		}
	}
}

func parses(t *testing.T, command string, args []string) {
	t.Helper()
	for i, a := range args {
		args[i] = strings.NewReplacer("dsn=…", "dsn=host=x", "=…", "=localhost:1", `"`, "", "'", "").Replace(a)
		if a == "--help" || strings.HasPrefix(a, "--config.file") {
			args = args[:i] // the file is the reader's own
			break
		}
	}
	parser, err := newParser(&cli{}, &config.Loaded{Lists: []string{"stores"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse(args); err != nil {
		t.Errorf("%s: %v", command, err)
	}
}

func consumerTakes(t *testing.T, consumer, command string, args []string) {
	t.Helper()
	var sub []string
	for _, a := range args {
		if strings.HasPrefix(a, "-") || a != strings.ToLower(a) {
			break
		}
		sub = append(sub, a)
	}
	out, err := exec.Command(consumer, append(sub, "--help")...).CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", command, err, out)
		return
	}
	for _, a := range args {
		flag, _, _ := strings.Cut(a, "=")
		if strings.HasPrefix(flag, "--") && !strings.Contains(string(out), flag) {
			t.Errorf("%s: no flag %s", command, flag)
		}
	}
}

func namesTests(t *testing.T, command string, args []string) {
	t.Helper()
	var packages []string
	var names []string
	for i, a := range args {
		switch {
		case strings.HasPrefix(a, "./"):
			packages = append(packages, a)
		case (a == "-run" || a == "-bench" || a == "-fuzz") && i+1 < len(args):
			if name := strings.Trim(args[i+1], "'^$"); name != "xxx" && name != "." {
				names = append(names, strings.Split(name, "|")...)
			}
		}
	}
	var source strings.Builder
	for _, p := range packages {
		pattern := filepath.Join(strings.TrimSuffix(p, "/..."), "*_test.go")
		if strings.HasSuffix(p, "...") {
			continue // all of them
		}
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Errorf("%s: no tests in %s", command, p)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			source.Write(text)
		}
	}
	for _, name := range names {
		name, _, _ = strings.Cut(name, "/")
		if !regexp.MustCompile(`func (Test|Benchmark|Fuzz|Example)?\w*` + regexp.QuoteMeta(name)).MatchString(source.String()) {
			t.Errorf("%s: nothing is named %s", command, name)
		}
	}
}

// The README is read in five minutes; what is longer stands beside its subject.
// Every relative link of every README leads to a file that is there.
func TestReadmeLinks(t *testing.T) {
	pages, err := filepath.Glob("*/README.md")
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	for _, page := range append(pages, "README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), "\n"); page == "README.md" && n > 200 {
			t.Errorf("README.md has %d lines, want at most 200", n)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
}
