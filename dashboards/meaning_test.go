package dashboards

import (
	"encoding/json"
	"fmt"
	"image/color"
	"math"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"

	"oncewatch/collectors/checklist"
	"oncewatch/collectors/web"
)

// Colours follow from what a panel's description calls good: where more is better
// they get better upwards, else worse.
func TestColoursFollowWhatIsGood(t *testing.T) {
	gravity := map[string]int{holds: 0, "blue": 0, unknown: 0, warning: 1, violated: 2}
	more := regexp.MustCompile(`Good: (above|near 100)`)
	judged := map[bool]int{}
	for _, b := range boards(t) {
		for _, p := range b.panels() {
			steps := p.FieldConfig.Defaults.Thresholds.Steps
			if len(steps) < 2 {
				continue
			}
			better := more.MatchString(p.Description)
			judged[better]++
			for i, s := range steps {
				g, ok := gravity[s.Color]
				if !ok {
					t.Errorf("%s / %s: %q is the colour of no verdict", b.UID, p.Title, s.Color)
				}
				if i == 0 {
					continue
				}
				if before := gravity[steps[i-1].Color]; better && g >= before || !better && g < before {
					t.Errorf("%s / %s: %q, and from %v on it turns from %s to %s", b.UID, p.Title, p.Description, *s.Value, steps[i-1].Color, s.Color)
				}
				if i > 1 && *s.Value <= *steps[i-1].Value {
					t.Errorf("%s / %s: the thresholds are not in order", b.UID, p.Title)
				}
			}
		}
	}
	if judged[true] < 2 || judged[false] < 10 {
		t.Errorf("judged %v", judged)
	}
}

// What is not known is grey and can be read on the ground of either theme; no
// reassuring green comes of nothing.
func TestUnknownIsGrey(t *testing.T) {
	grey := rgb(t, unknown)
	if _, strength := hue(grey); strength > 0.1 {
		t.Errorf("%s is not grey", unknown)
	}
	for theme, ground := range map[string]string{"light": "#ffffff", "dark": "#181b1f"} {
		if c := contrast(grey, rgb(t, ground)); c < 3 {
			t.Errorf("unknown has a contrast of %.1f in the %s theme, want 3", c, theme)
		}
	}
	for _, b := range boards(t) {
		for _, p := range b.panels() {
			raw, err := json.Marshal(p.FieldConfig.Overrides)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(`"color":"([^"]+)"[^}]*"text":"unknown"`).FindAllStringSubmatch(string(raw), -1) {
				if m[1] != unknown {
					t.Errorf("%s / %s: unknown is %s", b.UID, p.Title, m[1])
				}
			}
		}
	}
}

// A panel without data says that something is not known, and what may be missing.
func TestNothingReassures(t *testing.T) {
	soothing := regexp.MustCompile(`(?i)\b(ok|fine|well|good|healthy|safe|nothing has|no problem|all (is|are))\b`)
	missing := regexp.MustCompile(`\b(no|not|none|neither|needs?|withheld)\b`)
	for _, b := range boards(t) {
		for _, p := range b.panels() {
			text := p.FieldConfig.Defaults.NoValue
			if !strings.HasPrefix(text, "Not known: ") || soothing.MatchString(text) || !missing.MatchString(strings.TrimPrefix(text, "Not known: ")) {
				t.Errorf("%s / %s says without data: %q", b.UID, p.Title, text)
			}
			if strings.ContainsAny(text, "*_[`") {
				t.Errorf("%s / %s: Grafana shows %q as it is", b.UID, p.Title, text)
			}
			for _, o := range p.FieldConfig.Overrides {
				for _, property := range o.Properties {
					if property.ID == "noValue" && property.Value != words[isUnknown].text && property.Value != "not known" {
						t.Errorf("%s / %s: column %s says without data: %q", b.UID, p.Title, o.Matcher.Options, property.Value)
					}
				}
			}
		}
	}
}

// brief are durations that a timeout bounds: Grafana may scale them between
// microseconds and seconds.
var brief = []string{"event_handle_duration_seconds", "event_handle_duration_seconds_bucket", "marker_prune_batch_duration_seconds_bucket"}

// The axis of what may last long has one unit.
func TestDurationsHaveOneUnit(t *testing.T) {
	for _, b := range boards(t) {
		for _, p := range b.panels() {
			if unit := p.FieldConfig.Defaults.Unit; p.Type != "timeseries" || unit != "s" && !strings.HasPrefix(unit, "dt") {
				continue
			}
			for _, q := range p.Targets {
				for _, name := range metricNames(t, q.Expr) {
					if !slices.Contains(brief, name) {
						t.Errorf("%s / %s: the axis of %s goes over to weeks", b.UID, p.Title, name)
					}
				}
			}
		}
	}
}

// The series of partitions are read of the groups that are drawn alone, and drawn
// by group, or the worst ten of one group; the overview draws no line of another.
func TestPartitionsAreAggregated(t *testing.T) {
	for _, b := range boards(t) {
		narrow := map[string]string{overviewUID: "$worst", groupUID: "$consumer_group", tableUID: "$worst"}[b.UID]
		check := func(where, query string, drawn bool) {
			e, err := parser.NewParser(parser.Options{}).ParseExpr(strings.NewReplacer("$__rate_interval", "5m", "$__range", "6h").Replace(query))
			if err != nil {
				t.Fatal(err)
			}
			limited := false
			parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
				switch n := n.(type) {
				case *parser.AggregateExpr:
					limited = limited || n.Op == parser.TOPK || n.Op == parser.BOTTOMK
				case *parser.VectorSelector:
					everyone := !slices.Contains(metrics[n.Name], "partition") && !(drawn && b.UID == overviewUID)
					if everyone || !slices.Contains(metrics[n.Name], "consumer_group") {
						return nil
					}
					for _, m := range n.LabelMatchers {
						if m.Name == "consumer_group" && m.Value == narrow {
							return nil
						}
					}
					t.Errorf("%s reads %s of every group", where, n.Name)
				}
				return nil
			})
			if drawn && !limited && labelsOf(t, where, e, nil)["partition"] {
				t.Errorf("%s draws a line for each partition", where)
			}
		}
		for _, p := range b.panels() {
			for _, q := range p.Targets {
				check(fmt.Sprintf("%s / %s / %s", b.UID, p.Title, q.RefID), q.Expr, p.Type == "timeseries")
			}
		}
		for _, v := range b.Templating.List {
			if e, ok := queryResult(v.Query); ok {
				check(b.UID+" / variable "+v.Name, e, false)
			}
		}
	}
}

func metricNames(t *testing.T, query string) (names []string) {
	t.Helper()
	parser.Inspect(parsed(t, query, query), func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok && s.Name != "" {
			names = append(names, s.Name)
		}
		return nil
	})
	return names
}

// The exporter's page and the dashboards say the same: the same question above
// them, the same words in the same order, and colours of the same kind.
func TestPageAndDashboardsSayTheSame(t *testing.T) {
	text, err := os.ReadFile("../collectors/web/page.html")
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	if _, question, _ := strings.Cut(boards(t)[1].Title, " / "); !strings.Contains(page, "<h1>"+question+"</h1>") {
		t.Errorf("the page does not ask %q", question)
	}
	// Each leads to the other's lines of the same group.
	handler, err := web.Page(func() web.View {
		return web.View{Dashboards: "https://grafana.test/g/", Lines: []checklist.Line{{Group: "a&b", Topic: "t", Database: "d", Number: 1}}}
	})
	if err != nil {
		t.Fatal(err)
	}
	shown := httptest.NewRecorder()
	handler.ServeHTTP(shown, httptest.NewRequest("GET", "/", nil))
	if want := `href="https://grafana.test/g/d/` + groupUID + `?var-consumer_group=a%26b&amp;var-database=d&amp;var-topic=t"`; !strings.Contains(shown.Body.String(), want) {
		t.Errorf("the page does not lead to the group's dashboard: %s is missing in %s", want, shown.Body)
	}
	for name, raw := range generated(t) {
		if leads := strings.Contains(string(raw), `"http://${exporter}/?group=${__value.text:percentencode}"`); leads != (name != tableUID+".json") {
			t.Errorf("%s leads to the page's lines: %t", name, leads)
		}
	}
	// Worst sorts by the page's order.
	order := []checklist.Verdict{isHolding: checklist.OK, isUnknown: checklist.Unknown, isWarning: checklist.Warning, isViolated: checklist.Violated}
	for i, v := range order {
		if v.String() != words[i].text {
			t.Errorf("the page says %q, the dashboards %q", v, words[i].text)
		}
		if i > 0 && checklist.Worst([]checklist.Line{{Verdict: order[i-1]}, {Verdict: v}}) != v {
			t.Errorf("on the page %q is not worse than %q", v, order[i-1])
		}
	}
	// Grafana's named colours, in the light theme and in the dark.
	named := map[string][2]string{holds: {"#56A64B", "#73BF69"}, warning: {"#FF780A", "#FF9830"}, violated: {"#E02F44", "#F2495C"}, unknown: {unknown, unknown}}
	for _, w := range words {
		css := regexp.MustCompile(`--`+w.text+`: (#[0-9a-f]{6})`).FindAllStringSubmatch(page, -1)
		if len(css) != 2 {
			t.Fatalf("the page has %d colours for %s, want one for each theme", len(css), w.text)
		}
		for theme, m := range css {
			h1, s1 := hue(rgb(t, m[1]))
			h2, s2 := hue(rgb(t, named[w.color][theme]))
			if grey := s1 < 0.1; grey != (w.color == unknown) || !grey && math.Abs(math.Mod(h1-h2+540, 360)-180) > 30 || s2 < 0.1 != grey {
				t.Errorf("%s is %s on the page and %s in Grafana", w.text, m[1], named[w.color][theme])
			}
		}
	}
}

// What is written for import by hand asks for its data source, and is otherwise
// the same: https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/import-dashboards/
func TestImportByHand(t *testing.T) {
	dir := t.TempDir()
	if err := Write(dir, Options{AskDataSource: true}); err != nil {
		t.Fatal(err)
	}
	for name, provisioned := range generated(t) {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(provisioned), "${DS_") || strings.Contains(string(provisioned), "__inputs") {
			t.Errorf("%s cannot be provisioned: it asks", name)
		}
		var head struct {
			Inputs   []struct{ Name, Label, Type, PluginID string } `json:"__inputs"`
			Requires []struct{ Type, ID, Version string }           `json:"__requires"`
		}
		if err := json.Unmarshal(raw, &head); err != nil {
			t.Fatal(err)
		}
		if len(head.Inputs) != 1 || head.Inputs[0].Type != "datasource" || head.Inputs[0].PluginID != "prometheus" || head.Inputs[0].Label == "" {
			t.Fatalf("%s asks for %+v", name, head.Inputs)
		}
		// Grafana's import puts the answer in place of its name wherever it stands.
		answered := strings.ReplaceAll(string(raw), "${"+head.Inputs[0].Name+"}", "chosen-uid")
		var doc map[string]any
		if err := json.Unmarshal([]byte(answered), &doc); err != nil {
			t.Fatal(err)
		}
		var b board
		if err := json.Unmarshal([]byte(answered), &b); err != nil {
			t.Fatal(err)
		}
		v := b.Templating.List[0]
		if v.Name != "datasource" || v.Current.Value != "chosen-uid" {
			t.Errorf("%s: after the import the data source is %+v", name, v)
		}
		for _, p := range b.panels() {
			if !slices.ContainsFunc(head.Requires, func(r struct{ Type, ID, Version string }) bool { return r.Type == "panel" && r.ID == p.Type }) {
				t.Errorf("%s does not say that it needs the panel %s", name, p.Type)
			}
		}
		delete(doc, "__inputs")
		delete(doc, "__requires")
		delete(doc["templating"].(map[string]any)["list"].([]any)[0].(map[string]any), "current")
		var want map[string]any
		if err := json.Unmarshal(provisioned, &want); err != nil {
			t.Fatal(err)
		}
		delete(want["templating"].(map[string]any)["list"].([]any)[0].(map[string]any), "current")
		if a, b := fmt.Sprint(doc), fmt.Sprint(want); a != b {
			t.Errorf("%s is another dashboard when it is imported by hand", name)
		}
	}
}

func rgb(t *testing.T, hex string) color.RGBA {
	t.Helper()
	n, err := strconv.ParseUint(strings.TrimPrefix(hex, "#"), 16, 24)
	if err != nil || len(hex) != 7 {
		t.Fatalf("%q is no colour: %v", hex, err)
	}
	return color.RGBA{uint8(n >> 16), uint8(n >> 8), uint8(n), 255}
}

// hue is the angle of a colour, and how far it is from grey, at most 1.
func hue(c color.RGBA) (degrees, strength float64) {
	r, g, b := float64(c.R), float64(c.G), float64(c.B)
	most, spread := max(r, g, b), max(r, g, b)-min(r, g, b)
	if spread == 0 {
		return 0, 0
	}
	switch most {
	case r:
		degrees = 60 * (g - b) / spread
	case g:
		degrees = 120 + 60*(b-r)/spread
	default:
		degrees = 240 + 60*(r-g)/spread
	}
	return degrees, spread / 255
}

// contrast is the ratio of WCAG 2.2.
func contrast(a, b color.RGBA) float64 {
	luminance := func(c color.RGBA) float64 {
		linear := func(v uint8) float64 {
			if s := float64(v) / 255; s > 0.04045 {
				return math.Pow((s+0.055)/1.055, 2.4)
			} else {
				return s / 12.92
			}
		}
		return 0.2126*linear(c.R) + 0.7152*linear(c.G) + 0.0722*linear(c.B)
	}
	x, y := luminance(a), luminance(b)
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}
