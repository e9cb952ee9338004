package dashboards

import (
	"encoding/json"
	"regexp"
	"slices"
	"testing"
)

// The panel for Loki asks Loki and nobody else, and names no
// field by a word of LogQL, which its parser would not take as one.
func TestLogs(t *testing.T) {
	words := []string{"offset", "by", "without", "on", "ignoring", "bool", "json", "logfmt", "pattern", "unpack", "unwrap", "decolorize", "drop", "keep"}
	for _, format := range []string{"json", "logfmt"} {
		raw, err := Logs(format)
		if err != nil {
			t.Fatal(err)
		}
		var b struct {
			Panels []struct {
				Type       string
				Datasource struct{ Type string }
				Targets    []struct {
					Expr       string
					Datasource struct{ Type string }
				}
			}
		}
		if err := json.Unmarshal(raw, &b); err != nil {
			t.Fatal(err)
		}
		asked := 0
		for _, p := range b.Panels {
			for _, q := range p.Targets {
				asked++
				if p.Datasource.Type != "loki" || q.Datasource.Type != "loki" {
					t.Errorf("%s asks %s", q.Expr, q.Datasource.Type)
				}
				for _, m := range regexp.MustCompile(`(\w+)(=~?)"`).FindAllStringSubmatch(q.Expr, -1) {
					if slices.Contains(words, m[1]) {
						t.Errorf("%s: %s is a word of LogQL", q.Expr, m[1])
					}
				}
			}
		}
		if asked != 4 {
			t.Errorf("%d queries, want 4", asked)
		}
	}
	if _, err := Logs("xml"); err == nil {
		t.Error("logs of any format are taken")
	}
}

// withLogs are the generated dashboards and that for Loki.
func withLogs(t *testing.T) map[string][]byte {
	t.Helper()
	all := generated(t)
	raw, err := Logs("json")
	if err != nil {
		t.Fatal(err)
	}
	all["oncewatch-logs.json"] = raw
	return all
}
