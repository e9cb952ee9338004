package matrix

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"oncewatch/deploy/testenv"
)

// prometheus is a real one. All stacks of a run share it, each a cluster of
// its own by the label the rules keep apart.
type prometheus struct {
	url     string
	targets string // folder that its targets are read from
}

const prometheusConfig = `global:
  scrape_interval: %[1]s
  scrape_timeout: %[1]s
  evaluation_interval: %[1]s
rule_files: [rules/*.yml]
scrape_configs:
  - job_name: targets
    file_sd_configs: [{files: [targets/*.json], refresh_interval: 1s}]
`

func startPrometheus(t *testing.T) *prometheus {
	t.Helper()
	files := map[string]string{"prometheus.yml": fmt.Sprintf(prometheusConfig, minutes(1)), "rules/oncewatch.yml": string(rules(t))}
	for _, name := range others {
		files["rules/"+name+".yml"] = string(comparison(t, name))
	}
	s := testenv.Prometheus(t, files, "--query.lookback-delta="+minutes(5).String())
	targets := filepath.Join(s.Dir, "targets")
	if err := os.Mkdir(targets, 0o755); err != nil {
		t.Fatal(err)
	}
	return &prometheus{url: s.URL, targets: targets}
}

// watch scrapes the targets, by job, as a cluster of the name.
func (p *prometheus) watch(cluster string, jobs map[string][]string) error {
	type group struct {
		Targets []string          `json:"targets"`
		Labels  map[string]string `json:"labels"`
	}
	var groups []group
	for job, targets := range jobs {
		groups = append(groups, group{targets, map[string]string{"cluster": cluster, "job": job}})
	}
	text, err := json.Marshal(groups)
	if err != nil {
		return err
	}
	// Renamed into place: never half of it is read.
	path := filepath.Join(p.targets, cluster)
	if err := os.WriteFile(path+".tmp", text, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path+".json")
}

// forget stops scraping a cluster.
func (p *prometheus) forget(cluster string) error {
	return os.Remove(filepath.Join(p.targets, cluster+".json"))
}

func (p *prometheus) get(ctx context.Context, path string, args url.Values, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path+"?"+args.Encode(), nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: into}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return fmt.Errorf("prometheus: %s: %w", resp.Status, err)
	}
	if answer.Status != "success" {
		return fmt.Errorf("prometheus: %s", answer.Error)
	}
	return nil
}

// firing is an alert while it fired without a break.
type firing struct {
	Labels   map[string]string
	From, To time.Time
}

func (f firing) name() string     { return f.Labels["alertname"] }
func (f firing) severity() string { return f.Labels["severity"] }
func (f firing) stack() string    { return f.Labels["stack"] } // "": ours
func (f firing) at(t time.Time) bool {
	return !t.Before(f.From) && !t.After(f.To)
}

// alerts are the alerts of a cluster that fire, as /api/v1/alerts tells.
func (p *prometheus) alerts(ctx context.Context, cluster string) (map[string]bool, error) {
	var data struct {
		Alerts []struct {
			Labels map[string]string
			State  string
		}
	}
	if err := p.get(ctx, "/api/v1/alerts", nil, &data); err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, a := range data.Alerts {
		if a.State == "firing" && a.Labels["cluster"] == cluster {
			names[a.Labels["alertname"]] = true
		}
	}
	return names, nil
}

// history is every alert of a cluster that fired between two times.
func (p *prometheus) history(ctx context.Context, cluster string, from, to time.Time) ([]firing, error) {
	var all []firing
	err := p.series(ctx, fmt.Sprintf(`ALERTS{alertstate="firing",cluster=%q}`, cluster), from, to, func(labels map[string]string, times []time.Time, _ []float64) {
		f := firing{Labels: labels, From: times[0], To: times[0]}
		for _, t := range times[1:] {
			if t.Sub(f.To) > minutes(1)*3/2 {
				all = append(all, f)
				f.From = t
			}
			f.To = t
		}
		all = append(all, f)
	})
	slices.SortFunc(all, func(a, b firing) int { return a.From.Compare(b.From) })
	return all, err
}

// series calls f for each series of a query, sampled at each evaluation.
func (p *prometheus) series(ctx context.Context, query string, from, to time.Time, f func(map[string]string, []time.Time, []float64)) error {
	var data struct {
		Result []struct {
			Metric map[string]string
			Values [][2]json.RawMessage
		}
	}
	stamp := func(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64) }
	err := p.get(ctx, "/api/v1/query_range", url.Values{"query": {query}, "start": {stamp(from)}, "end": {stamp(to)}, "step": {fmt.Sprint(minutes(1).Seconds())}}, &data)
	if err != nil {
		return err
	}
	for _, r := range data.Result {
		var times []time.Time
		var values []float64
		for _, v := range r.Values {
			var at float64
			var text string
			if json.Unmarshal(v[0], &at) != nil || json.Unmarshal(v[1], &text) != nil {
				return fmt.Errorf("prometheus: %s", v)
			}
			value, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return err
			}
			times = append(times, time.UnixMilli(int64(at*1000)))
			values = append(values, value)
		}
		f(r.Metric, times, values)
	}
	return nil
}
