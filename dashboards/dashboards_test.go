package dashboards

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"

	"oncewatch/alerts"
)

var update = flag.Bool("update", false, "write the generated dashboards beside the Go files")

// A board is what the tests read back from a generated file: only the fields
// they look at, decoded apart from the SDK that wrote them.
type board struct {
	UID           string
	Title         string
	Description   string
	Editable      *bool
	SchemaVersion int
	Tags          []string
	Links         []link
	Panels        []boardPanel
	Templating    struct{ List []template }
	Annotations   struct{ List []annotation }
}

type link struct {
	Title, Type, URL string
	Tags             []string
	IncludeVars      bool
	KeepTime         bool
	Placement        *string
}

type boardPanel struct {
	ID                 uint32
	Type               string
	Title, Description string
	Datasource         struct{ Type, UID string }
	GridPos            struct{ X, Y, W, H uint32 }
	Links              []link
	Panels             []boardPanel
	Targets            []target
	Transformations    []struct{ ID string }
	Options            map[string]any
	FieldConfig        struct {
		Defaults  fieldDefaults
		Overrides []struct {
			Matcher    struct{ ID, Options string }
			Properties []struct {
				ID    string
				Value any
			}
		}
	}
}

type fieldDefaults struct {
	Unit       string
	NoValue    string
	Thresholds struct {
		Mode  string
		Steps []struct {
			Value *float64
			Color string
		}
	}
	Links []link
}

type target struct {
	RefID, Expr, LegendFormat, Format string
	Datasource                        struct{ Type, UID string }
	Instant, Range, Exemplar          bool
}

type template struct {
	Name, Label, Type, Query, AllValue string
	Regex                              string
	Hide                               int
	Multi, IncludeAll                  bool
	Refresh                            int
	Datasource                         *struct{ UID string }
	Current                            struct{ Value any }
}

type annotation struct {
	Name        string
	Target      target
	Enable      bool
	TitleFormat string
	Placement   *string
	Datasource  struct{ UID string }
}

// panels returns every panel that is not a row.
func (b board) panels() []boardPanel {
	return slices.DeleteFunc(slices.Clone(b.Panels), func(p boardPanel) bool { return p.Type == "row" })
}

func generated(t *testing.T) map[string][]byte {
	t.Helper()
	files, err := Generate(Options{})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func boards(t *testing.T) []board {
	t.Helper()
	var all []board
	files := generated(t)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		var b board
		if err := json.Unmarshal(files[name], &b); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all = append(all, b)
	}
	return all
}

func TestFilesAreGenerated(t *testing.T) {
	files := generated(t)
	for name, want := range files {
		if *update {
			if err := os.WriteFile(name, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what the Go files generate: go test ./dashboards -run TestFilesAreGenerated -update", name)
		}
	}
	onDisk, err := filepath.Glob("*.json")
	if err != nil {
		t.Fatal(err)
	}
	if len(onDisk) != len(files) {
		t.Errorf("%v lie beside the Go files, %d are generated", onDisk, len(files))
	}
	for range 3 {
		again := generated(t)
		if !maps.EqualFunc(files, again, bytes.Equal) {
			t.Fatal("two runs generate different files")
		}
	}
}

func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "folder")
	values := filepath.Join(t.TempDir(), "values.yml")
	if err := os.WriteFile(values, []byte("retention_ratio_warning: 1.375\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	o := Options{ValuesFile: values, Set: map[string]string{"lag_min": "4321"}, RunbookBase: "https://runbooks.test/x/"}
	if err := Write(dir, o); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, overviewUID+".json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"value": 4321`, `< 1.375`, `"value": 1.375`, `above 1.375 and flat`, `https://runbooks.test/x/EventsLost.md`} {
		if !strings.Contains(string(raw), want) {
			t.Errorf("a threshold of 1.375 and a base for runbooks were set: %s is missing", want)
		}
	}
	if strings.Contains(string(raw), "1.1,") || strings.Contains(string(raw), alerts.DefaultRunbookBase) {
		t.Error("a default is left although it was overridden")
	}

	if err := Write(t.TempDir(), Options{Set: map[string]string{"lag_minimum": "1"}}); err == nil || !strings.Contains(err.Error(), "lag_minimum") {
		t.Errorf("an unknown threshold: got %v, want an error that names it", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Write(file, Options{}); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("Write into a file: got %v, want an error that names it", err)
	}
}

// The SDK decodes strictly: unknown fields, wrong types and values outside an
// enumeration are errors, which building does not check.
func TestSchema(t *testing.T) {
	plugins.RegisterDefaultPlugins()
	for name, raw := range withLogs(t) {
		var d dashboard.Dashboard //lint:ignore SA1019 this is the schema that is written
		// The SDK returns a nil slice as an error that is not nil.
		var errs cog.BuildErrors
		if err := d.UnmarshalJSONStrict(raw); !errors.As(err, &errs) || len(errs) > 0 {
			t.Errorf("%s: %v", name, err)
		}
		if err := d.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What the SDK leaves empty is an empty string or a null in the file, where
// Grafana expects a value or nothing.
func TestNothingIsLeftEmpty(t *testing.T) {
	for name, raw := range withLogs(t) {
		var doc any
		if err := json.Unmarshal(raw, &doc); err != nil {
			t.Fatal(err)
		}
		var walk func(path string, v any)
		walk = func(path string, v any) {
			switch v := v.(type) {
			case nil:
				// The first threshold begins at minus infinity, which JSON
				// cannot say.
				if !strings.HasSuffix(path, ".steps[0].value") {
					t.Errorf("%s: %s is null", name, path)
				}
			case string:
				// "" is Grafana's word for "all numeric fields".
				if v == "" && !strings.HasSuffix(path, ".reduceOptions.fields") {
					t.Errorf("%s: %s is empty", name, path)
				}
			case []any:
				for i, e := range v {
					walk(fmt.Sprintf("%s[%d]", path, i), e)
				}
			case map[string]any:
				for k, e := range v {
					walk(path+"."+k, e)
				}
			}
		}
		walk("", doc)
	}
}

func TestLayout(t *testing.T) {
	uids := map[string]bool{}
	for _, b := range boards(t) {
		if uids[b.UID] || len(b.UID) < 8 || len(b.UID) > 40 {
			t.Errorf("uid %q is used twice, or is not 8 to 40 characters long", b.UID)
		}
		uids[b.UID] = true
		if n := len(b.panels()); n > 20 {
			t.Errorf("%s has %d panels: more than 20 are not read", b.UID, n)
		}
		ids := map[uint32]string{}
		cells := map[[2]uint32]string{}
		var bottom uint32
		for _, p := range b.Panels {
			if other, taken := ids[p.ID]; taken || p.ID == 0 {
				t.Errorf("%s: %q has the id %d of %q", b.UID, p.Title, p.ID, other)
			}
			ids[p.ID] = p.Title
			if len(p.Panels) > 0 {
				t.Errorf("%s: row %q has panels inside, so it starts collapsed", b.UID, p.Title)
			}
			g := p.GridPos
			if g.W == 0 || g.H == 0 || g.X+g.W > gridWidth {
				t.Errorf("%s: %q does not fit the grid: %+v", b.UID, p.Title, g)
			}
			for x := g.X; x < g.X+g.W; x++ {
				for y := g.Y; y < g.Y+g.H; y++ {
					if other, taken := cells[[2]uint32{x, y}]; taken {
						t.Fatalf("%s: %q overlaps %q at column %d, line %d", b.UID, p.Title, other, x, y)
					}
					cells[[2]uint32{x, y}] = p.Title
				}
			}
			bottom = max(bottom, g.Y+g.H)
			// At 1280 px a column is about 50 px wide: a graph below 8 columns
			// cannot be read, a number below 4.
			if least := map[string]uint32{"stat": 4, "row": 24}[p.Type]; g.W < max(least, 4) || (least == 0 && g.W < 8) {
				t.Errorf("%s: %q is %d columns wide, too narrow at 1280 px", b.UID, p.Title, g.W)
			}
		}
		if got := uint32(len(cells)); got != bottom*gridWidth {
			t.Errorf("%s: the panels leave %d cells of the grid empty", b.UID, bottom*gridWidth-got)
		}
	}
	if len(uids) != 3 {
		t.Errorf("%d dashboards, want 3", len(uids))
	}
}

func TestEveryPanelExplainsItself(t *testing.T) {
	rules := ruleNames(t)
	linked := map[string]bool{}
	for _, b := range boards(t) {
		titles := map[string]bool{}
		for _, p := range b.panels() {
			if titles[p.Title] {
				t.Errorf("%s: two panels are called %q", b.UID, p.Title)
			}
			titles[p.Title] = true
			if len(p.Description) < 60 && p.Type != "stat" || !strings.Contains(p.Description, "Good: ") && !strings.Contains(p.Description, "should say") && p.Type != "stat" {
				t.Errorf("%s: the description of %q does not say what good looks like: %q", b.UID, p.Title, p.Description)
			}
			if len(p.FieldConfig.Defaults.NoValue) < 15 {
				t.Errorf("%s: %q shows a bare \"No data\"", b.UID, p.Title)
			}
			if p.Type != "table" && p.FieldConfig.Defaults.Unit == "" {
				t.Errorf("%s: %q has no unit", b.UID, p.Title)
			}
			for _, l := range p.Links {
				alert := strings.TrimSuffix(strings.TrimPrefix(l.URL, alerts.DefaultRunbookBase+"/"), ".md")
				if !rules[alert] {
					t.Errorf("%s: %q links to a runbook of %q, which is no alert", b.UID, p.Title, alert)
				}
				linked[alert] = true
			}
		}
		dashboards := false
		for _, l := range b.Links {
			dashboards = dashboards || l.Type == "dashboards" && slices.Equal(l.Tags, b.Tags) && l.IncludeVars && l.KeepTime && l.Placement == nil
		}
		if !dashboards {
			t.Errorf("%s does not link to the other dashboards with its selection and time range", b.UID)
		}
	}
	for alert := range rules {
		if !linked[alert] {
			t.Errorf("no panel links to the runbook of %s", alert)
		}
	}
}

// ruleNames are the alerts of the rules as they are shipped.
func ruleNames(t *testing.T) map[string]bool {
	t.Helper()
	var out bytes.Buffer
	if err := alerts.Render(&out, alerts.Options{}); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for line := range strings.Lines(out.String()) {
		if _, name, ok := strings.Cut(line, "- alert: "); ok {
			names[strings.TrimSpace(name)] = true
		}
	}
	if len(names) == 0 {
		t.Fatal("the rules contain no alert")
	}
	return names
}

func TestAnnotations(t *testing.T) {
	rules := ruleNames(t)
	for _, b := range boards(t) {
		firing := false
		for _, a := range b.Annotations.List {
			if a.Placement != nil || a.Datasource.UID != "${datasource}" || a.Target.Expr == "" || a.TitleFormat == "" {
				t.Errorf("%s: annotation %q is not complete: %+v", b.UID, a.Name, a)
			}
			if a.Name == "Firing alerts" {
				firing = a.Enable
				for alert := range rules {
					if !matchesAlert(t, a.Target.Expr, alert) {
						t.Errorf("%s: %s fires without being annotated", b.UID, alert)
					}
				}
				if matchesAlert(t, a.Target.Expr, "NodeFilesystemAlmostOutOfSpace") {
					t.Errorf("%s: another's alerts are annotated too", b.UID)
				}
			}
		}
		if !firing {
			t.Errorf("%s does not annotate firing alerts", b.UID)
		}
	}
}
