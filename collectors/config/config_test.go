package config_test

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"oncewatch/collectors/config"
)

type app struct {
	ConfigFile config.FileFlag `name:"config.file"`
	Kafka      struct {
		Brokers   []string
		Group     string `default:".*"`
		MaxGroups int    `default:"1000"`
	} `embed:"" prefix:"kafka."`
	Poll struct {
		Interval time.Duration `default:"15s"`
	} `embed:"" prefix:"poll."`
	Keep  map[string]string `name:"postgres.retention"`
	Times struct {
		Retention time.Duration `positive:""`
		Times     map[string]time.Duration
	} `embed:"" prefix:"keep."`
}

func parse(t *testing.T, yaml string, args ...string) (app, *config.Loaded, error) {
	t.Helper()
	if yaml != "" {
		path := filepath.Join(t.TempDir(), "oncewatch.yml")
		if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config.file="+path)
	}
	var a app
	loaded := &config.Loaded{Lists: []string{"stores"}}
	parser, err := kong.New(&a, append(config.Options("ONCEWATCH"), kong.Bind(loaded))...)
	if err != nil {
		t.Fatal(err)
	}
	_, err = parser.Parse(args)
	return a, loaded, err
}

func TestSecondDocument(t *testing.T) {
	if _, _, err := parse(t, "kafka.max-groups: 3\n---\nkafka.max-groups: 4\n"); err == nil || !strings.Contains(err.Error(), "oncewatch.yml:2: a second document") {
		t.Errorf("error: %v", err)
	}
}

func TestFlagWinsOverEnvironmentWinsOverFile(t *testing.T) {
	const file = "kafka:\n  max-groups: 1\n"
	got, _, err := parse(t, file)
	if err != nil || got.Kafka.MaxGroups != 1 {
		t.Fatalf("file: %d, %v", got.Kafka.MaxGroups, err)
	}
	t.Setenv("ONCEWATCH_KAFKA_MAX_GROUPS", "2")
	if got, _, err = parse(t, file); err != nil || got.Kafka.MaxGroups != 2 {
		t.Errorf("environment over file: %d, %v", got.Kafka.MaxGroups, err)
	}
	if got, _, err = parse(t, file, "--kafka.max-groups=3"); err != nil || got.Kafka.MaxGroups != 3 {
		t.Errorf("flag over both: %d, %v", got.Kafka.MaxGroups, err)
	}
}

func TestFileFromTheEnvironment(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.yml")
	if err := os.WriteFile(path, []byte("poll.interval: 1d\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("ONCEWATCH_CONFIG_FILE", path)
	got, _, err := parse(t, "")
	if err != nil || got.Poll.Interval != 24*time.Hour {
		t.Errorf("poll.interval = %v, %v", got.Poll.Interval, err)
	}
}

// A comma inside an expression survives all three ways.
func TestCommaInAnExpression(t *testing.T) {
	const want = "a{1,2}|b,c"
	got, _, err := parse(t, "kafka: {group: '"+want+"'}\n")
	if err != nil || got.Kafka.Group != want {
		t.Errorf("file: %q, %v", got.Kafka.Group, err)
	}
	if got, _, err = parse(t, "", "--kafka.group="+want); err != nil || got.Kafka.Group != want {
		t.Errorf("flag: %q, %v", got.Kafka.Group, err)
	}
	t.Setenv("ONCEWATCH_KAFKA_GROUP", want)
	if got, _, err = parse(t, ""); err != nil || got.Kafka.Group != want {
		t.Errorf("environment: %q, %v", got.Kafka.Group, err)
	}
}

func TestFileShapes(t *testing.T) {
	got, loaded, err := parse(t, `
kafka.brokers: [a:1, b:2]
postgres:
  retention:
    ledger.writer: 8d
stores:
  - poll.interval: 1m
  - poll: {interval: 2m}
`)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Join(got.Kafka.Brokers, " ") != "a:1 b:2" || got.Keep["ledger.writer"] != "8d" {
		t.Errorf("got %+v", got)
	}
	var intervals []time.Duration
	for _, s := range loaded.File.List("stores") {
		var one app
		if err := s.Decode(&one); err != nil {
			t.Fatal(err)
		}
		if one.Kafka.MaxGroups != 1000 {
			t.Errorf("a list entry has no defaults: %+v", one)
		}
		intervals = append(intervals, one.Poll.Interval)
	}
	if len(intervals) != 2 || intervals[0] != time.Minute || intervals[1] != 2*time.Minute {
		t.Errorf("stores: %v", intervals)
	}
}

func TestMistakesNameTheirLine(t *testing.T) {
	for yaml, want := range map[string]string{
		"kafka:\n  brokrs: [a]\n":              "oncewatch.yml:2: unknown key kafka.brokrs; did you mean kafka.brokers?",
		"\n\nnothing.like.it: 1\n":             "oncewatch.yml:3: unknown key: is this a configuration file of the program? (config, kafka, keep, poll, postgres)",
		"poll:\n  interval: fast\n":            `oncewatch.yml:2: poll.interval: invalid duration "fast": want for example 15s, 90m or 8d`,
		"kafka: [a]\n":                         "oncewatch.yml:1: unknown key kafka",
		"kafka: {max-groups: {a: 1}}\n":        "oncewatch.yml:1: kafka.max-groups: want a value, not a mapping",
		"kafka.group: a\nkafka:\n  group: b\n": "oncewatch.yml:3: kafka.group is set twice, first in line 1",
		"x: 1\na: b: c\n":                      "oncewatch.yml: line 2: mapping values are not allowed in this context",
		"stores: {a: b}\n":                     "oncewatch.yml:1: stores: want a list",
		"stores: []\n":                         "oncewatch.yml:1: stores: the list is empty",
		"poll.interval: \"15\"\n":              `oncewatch.yml:1: poll.interval: invalid duration "15": want for example 15s, 90m or 8d`,
		"kafka:\n  brokers: [{a: 1}]\n":        "oncewatch.yml:2: kafka.brokers: want plain values in it, no list and no mapping",
		"keep: {times: {g: {h: 1d}}}\n":        "oncewatch.yml:1: keep.times: want plain values in it",
		"keep.retention: 0\n":                  "oncewatch.yml:1: keep.retention: 0 is not a time",
		"keep: {times: {g: 8x}}\n":             `oncewatch.yml:1: keep.times: g: invalid duration "8x"`,
		"hunter2:\n":                           "oncewatch.yml:1: unknown key: is this",
		"hunter2: 1\n":                         "oncewatch.yml:1: unknown key: is this",
		"a: *hunter2\n":                        "oncewatch.yml: unknown anchor",
		"u:hunter2:p\n: b: c\n":                "oncewatch.yml: line 1:",
		"- a\n":                                "oncewatch.yml:1: want a mapping of keys to values",
		"kafka:\n  max-groups: many\n":         "oncewatch.yml:2: kafka.max-groups: expected a valid 64 bit int but got \"many\"",
	} {
		_, _, err := parse(t, yaml)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") || strings.Count(err.Error(), "oncewatch.yml") > 1 || strings.Count(err.Error(), "poll.interval") > 1 {
			t.Errorf("%q:\n got %v\nwant %s", yaml, err, want)
		}
	}
	if _, _, err := parse(t, "", "--config.file=/nowhere/f.yml"); err == nil || !strings.Contains(err.Error(), "/nowhere/f.yml: no such file") {
		t.Errorf("absent file: %v", err)
	}
}

// A map is read alike from a flag, the environment and the file, with days.
func TestMapsOfDurations(t *testing.T) {
	want := map[string]time.Duration{"a": 192 * time.Hour, "b.c": 90 * time.Second}
	got, _, err := parse(t, "keep.times: {a: 8d, b.c: 90s}\n")
	if err != nil || !maps.Equal(got.Times.Times, want) {
		t.Errorf("file: %v, %v", got.Times.Times, err)
	}
	if got, _, err = parse(t, "", "--keep.times=a=8d;b.c=90s"); err != nil || !maps.Equal(got.Times.Times, want) {
		t.Errorf("flag: %v, %v", got.Times.Times, err)
	}
	for flag, says := range map[string]string{"a=8x": `--keep.times: a: invalid duration "8x"`, "8d": `--keep.times: "8d": want KEY=VALUE`} {
		if _, _, err := parse(t, "", "--keep.times="+flag); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", flag, err)
		}
	}
}

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{"8d": 192 * time.Hour, "1d12h": 36 * time.Hour, "1.5d": 36 * time.Hour, "90s": 90 * time.Second, "250ms": 250 * time.Millisecond, "0": 0, "0d": 0, "36500d": 36500 * 24 * time.Hour} {
		if got, err := config.ParseDuration(text); err != nil || got != want {
			t.Errorf("%s = %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "8", "d", "-1d", "8days", "8dd", "eight", "1h8d", "NaNd", "36501d", "99999999999d"} {
		if got, err := config.ParseDuration(text); err == nil {
			t.Errorf("%q = %v, want an error", text, got)
		}
	}
}

// A file may say nothing, say null for a key, and say a section twice.
func TestFilesThatSayLittle(t *testing.T) {
	for _, yaml := range []string{"", "# nothing\n", "null\n", "~\n", "kafka.max-groups: null\n"} {
		if got, _, err := parse(t, yaml); err != nil || got.Kafka.MaxGroups != 1000 {
			t.Errorf("%q: %d, %v; want the default", yaml, got.Kafka.MaxGroups, err)
		}
	}
	got, _, err := parse(t, "kafka: {max-groups: 3}\nkafka: {group: g}\n")
	if err != nil || got.Kafka.MaxGroups != 3 || got.Kafka.Group != "g" {
		t.Errorf("a section in two parts: %+v, %v", got, err)
	}
	if _, _, err := parse(t, "a word\n"); err == nil || !strings.Contains(err.Error(), "want a mapping") {
		t.Errorf("a word: %v", err)
	}
}

// A secret in a file ends with its line; blanks around it are its own.
func TestReadSecret(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	for text, want := range map[string]string{"s3cret": "s3cret", "s3cret\n": "s3cret", " s3 cret \r\n": " s3 cret "} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := config.ReadSecret("--flag", path); err != nil || got.Reveal() != want {
			t.Errorf("%q: %q, %v", text, got.Reveal(), err)
		}
	}
	if err := os.WriteFile(path, []byte(" \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{path: "--flag: " + path + " is empty", path + ".gone": "--flag: open "} {
		if _, err := config.ReadSecret("--flag", file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", file, err, want)
		}
	}
}

// Every flag stands in the example under its section, with its help and its
// default, or a placeholder behind a comment's sign.
func TestExample(t *testing.T) {
	var a struct {
		Kafka struct {
			Brokers []string          `default:"localhost:9092" help:"Addresses."`
			Group   string            `help:"Groups whose text is so long that it does not stand on one line of ninety characters, which it does not." placeholder:"REGEX"`
			On      bool              `help:"A switch."`
			Keep    map[string]string `help:"A map."`
			Wait    time.Duration     `help:"A time."`
			Most    int               `default:"3"`
		} `embed:"" prefix:"kafka."`
		Alone string
		Away  struct {
			Name string
		} `embed:"" prefix:"away."`
	}
	parser, err := kong.New(&a, append(config.Options("X"), kong.NoDefaultHelp())...)
	if err != nil {
		t.Fatal(err)
	}
	got, err := config.Example(parser.Model.Flags)
	if err != nil {
		t.Fatal(err)
	}
	want := `kafka:
  # Addresses.
  brokers: ['localhost:9092']
  # Groups whose text is so long that it does not stand on one line of ninety characters,
  # which it does not.
  # group: REGEX
  # A switch.
  on: false
  # A map.
  # keep: {KEY: VALUE}
  # A time.
  # wait: DURATION
  #` + " " + `
  most: 3

# away:
  #` + " " + `
  # name: NAME

#` + " " + `
# alone: ALONE
`
	if string(got) != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	list, err := config.ExampleList("stores", "kafka", parser.Model.Flags)
	if err != nil || string(list) != `# stores:
#   - brokers: ['localhost:9092']
#     # group: REGEX
#     on: false
#     # keep: {KEY: VALUE}
#     # wait: DURATION
#     most: 3
` {
		t.Errorf("list: %v\n%s", err, list)
	}
}

// An entry of a list is read like the file: a wrong value is an error with its
// line.
func TestAListsEntryIsWrong(t *testing.T) {
	f, err := config.Parse("oncewatch.yml", []byte("stores:\n- poll.interval: 1m\n- poll.interval: fast\n"), "stores")
	if err != nil {
		t.Fatal(err)
	}
	var one app
	if err := f.List("stores")[0].Decode(&one); err != nil || one.Poll.Interval != time.Minute {
		t.Errorf("%s, %v", one.Poll.Interval, err)
	}
	if err := f.List("stores")[1].Decode(&one); err == nil || !strings.Contains(err.Error(), `oncewatch.yml:3: invalid duration "fast"`) {
		t.Errorf("error: %v", err)
	}
}
