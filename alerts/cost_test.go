package alerts

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"oncewatch/deploy/testenv"
)

var costGroups = flag.Int("cost.groups", 0, "measure what the rules cost for so many groups of 20 partitions")

// What all rules cost a real Prometheus in a minute, scraped every 15 s: at
// most one CPU-second for 1,000 groups of 20 partitions. It writes a day of what
// such groups and their consumers export, in the depth that some rule looks back,
// and what the rules have recorded of it, and goes on for the minutes to come.
//
//	go test ./alerts -run TestCost -cost.groups=1000 -v
func TestCost(t *testing.T) {
	if *costGroups == 0 {
		t.Skip("a command of its own: go test ./alerts -run TestCost -cost.groups=1000 -v")
	}
	config := "global: {scrape_interval: 15s, evaluation_interval: 1m}\n"
	files := map[string]string{"prometheus.yml": config + "rule_files: [rules/*.yml]\n"}
	for _, name := range ruleFiles(t) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files["rules/"+name] = string(text)
	}
	blocks := t.TempDir()
	const minutes = 3
	until := time.Now().Add((minutes + 6) * time.Minute)
	generate := exec.CommandContext(t.Context(), "go", "run", "-modfile=tools.mod", "alerts/costdata/main.go",
		blocks, strconv.Itoa(*costGroups), strconv.FormatInt(until.Unix(), 10))
	generate.Dir = testenv.Root()
	series, err := generate.Output()
	if err != nil {
		t.Fatal("generate: ", err)
	}
	s := testenv.Prometheus(t, files)
	names, err := filepath.Glob(filepath.Join(blocks, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names { // looked for once a minute
		if err := os.Rename(name, filepath.Join(s.Dir, "data", filepath.Base(name))); err != nil {
			t.Fatal(err)
		}
	}
	deadline := time.Now().Add(2 * time.Minute)
	for ask(t, s.URL, `count(consumer_lag)`) < float64(20**costGroups) {
		if time.Now().After(deadline) {
			t.Fatal("Prometheus does not load the blocks")
		}
		time.Sleep(time.Second)
	}
	// The first evaluation finds everything new.
	time.Sleep(time.Minute)
	cpu := func() float64 { return scrapeOne(t, s.URL, "process_cpu_seconds_total") }
	from, began := cpu(), time.Now()
	time.Sleep(minutes * time.Minute)
	cost := (cpu() - from) / time.Since(began).Minutes()
	t.Logf("%d groups of 20 partitions, %s series: %.2f CPU-seconds a minute for all %d rules", *costGroups, series, cost, len(rules(t)))
	t.Logf("slowest rules, seconds an evaluation: %s", get(t, s.URL+"/api/v1/rules", ruleTimes))
	if limit := max(0.1, float64(*costGroups)/1000); cost > limit {
		t.Errorf("above %.2f", limit)
	}
}

// get asks Prometheus and gives the body to read.
func get[T any](t *testing.T, address string, read func(io.Reader) (T, error)) T {
	t.Helper()
	resp, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	v, err := read(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// ask is the value of a query that gives one, or 0.
func ask(t *testing.T, base, query string) float64 {
	t.Helper()
	return get(t, base+"/api/v1/query?query="+url.QueryEscape(query), func(r io.Reader) (float64, error) {
		var answer struct {
			Data struct {
				Result []struct{ Value [2]any }
			}
		}
		if err := json.NewDecoder(r).Decode(&answer); err != nil || len(answer.Data.Result) == 0 {
			return 0, err
		}
		return strconv.ParseFloat(answer.Data.Result[0].Value[1].(string), 64)
	})
}

func scrapeOne(t *testing.T, base, name string) float64 {
	t.Helper()
	return get(t, base+"/metrics", func(r io.Reader) (v float64, err error) {
		text, err := io.ReadAll(r)
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(string(text)) {
			if n, _ := fmt.Sscanf(line, name+" %g", &v); n == 1 {
				return v, nil
			}
		}
		return 0, fmt.Errorf("no %s", name)
	})
}

// ruleTimes reads how long the last evaluation of the slowest rules took, and
// of all of them.
func ruleTimes(r io.Reader) (string, error) {
	type rule struct {
		Name           string
		EvaluationTime float64
	}
	var answer struct {
		Data struct {
			Groups []struct{ Rules []rule }
		}
	}
	if err := json.NewDecoder(r).Decode(&answer); err != nil {
		return "", err
	}
	var all []rule
	sum := 0.0
	for _, g := range answer.Data.Groups {
		for _, r := range g.Rules {
			all, sum = append(all, r), sum+r.EvaluationTime
		}
	}
	slices.SortFunc(all, func(a, b rule) int { return cmp.Compare(b.EvaluationTime, a.EvaluationTime) })
	text := fmt.Sprintf("all %.3f", sum)
	for _, r := range all[:min(20, len(all))] {
		text += fmt.Sprintf("; %s %.3f", r.Name, r.EvaluationTime)
	}
	return text, nil
}
