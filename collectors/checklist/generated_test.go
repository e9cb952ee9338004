package checklist_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"oncewatch/collectors/checklist"
	"oncewatch/collectors/retention"
	"oncewatch/collectors/span"
	"oncewatch/collectors/web"
)

var (
	seed = flag.Uint64("seed", 1, "of the generated facts")
	runs = flag.Int("facts", 2000, "how many facts are generated")
)

// Whatever the sources tell, absent, nothing, negative, the largest, infinite,
// not a number, under hostile names: page, text and JSON are written, and no
// sentence in them is nonsense.
func TestGeneratedFacts(t *testing.T) {
	told := map[string]bool{}
	for i := range *runs {
		for _, c := range complaints(generate(rand.New(rand.NewPCG(*seed, uint64(i))))) {
			if !told[c.kind] {
				t.Errorf("-seed=%d, facts %d: %s: %s", *seed, i, c.kind, c.text)
			}
			told[c.kind] = true
		}
	}
}

// generate is a world of which some numbers, names and parts are replaced.
func generate(r *rand.Rand) checklist.Facts {
	w := healthy()
	w.lines() // puts the shared parts in place
	w.Stores[0].Markers.Problems()
	g := generator{r: r, share: []float64{0.02, 0.1, 0.4}[r.IntN(3)]}
	f := w.Facts
	thresholds := f.Thresholds
	g.fill(reflect.ValueOf(&f).Elem())
	f.Now, f.Thresholds = now, thresholds
	for _, s := range f.Stores {
		if s.Markers != nil {
			s.Markers.ReadAt = now.Add(-time.Second) // our own clock
		}
	}
	if f.Retention != nil {
		for _, s := range f.Retention.Series {
			if s != nil && r.IntN(4) > 0 {
				s.Compare(s.Numbers, 1.1)
			}
		}
	}
	return f
}

type generator struct {
	r     *rand.Rand
	share float64
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func (g generator) hit() bool { return g.r.Float64() < g.share }

// fill walks over everything that is exported below v.
func (g generator) fill(v reflect.Value) {
	if !v.CanSet() {
		return
	}
	switch at := v.Addr().Interface().(type) {
	case *time.Time:
		if g.hit() {
			*at = pick(g.r, time.Time{}, now, now.Add(-8*day), now.Add(time.Hour), time.Unix(0, 0), time.Unix(1<<40, 0), time.Unix(-1<<40, 0))
		}
		return
	case *time.Duration:
		if g.hit() {
			*at = pick(g.r, 0, -1, math.MinInt64, math.MaxInt64, math.MaxInt64-1, time.Nanosecond, time.Minute, 3*day, 8*day)
		}
		return
	case *error:
		*at = pick(g.r, nil, errors.New(pick(g.r, names...)))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			g.fill(v.Field(i))
		}
	case reflect.Pointer:
		switch {
		case v.IsNil():
			if g.hit() {
				v.Set(reflect.New(v.Type().Elem()))
				g.fill(v.Elem())
			}
		case g.r.Float64() < g.share/3:
			v.SetZero()
		default:
			g.fill(v.Elem())
		}
	case reflect.Slice:
		if g.r.Float64() < g.share/2 {
			v.SetZero()
		}
		for i := range v.Len() {
			if v.Index(i).Kind() == reflect.Pointer { // none of these may be nil
				g.fill(v.Index(i).Elem())
				continue
			}
			g.fill(v.Index(i))
		}
	case reflect.Map:
		if g.r.Float64() < g.share/2 {
			v.SetZero()
		}
		for _, k := range v.MapKeys() {
			one := reflect.New(v.Type().Elem()).Elem()
			one.Set(v.MapIndex(k))
			g.fill(one)
			v.SetMapIndex(k, one)
		}
	case reflect.Bool:
		if g.hit() {
			v.SetBool(!v.Bool())
		}
	case reflect.Int, reflect.Int32, reflect.Int64:
		if g.hit() {
			n := pick[int64](g.r, 0, -1, 1, math.MinInt64, math.MaxInt64, 2000, 123_456_789)
			if v.Kind() == reflect.Int32 {
				n = int64(int32(n))
			}
			v.SetInt(n)
		}
	case reflect.Float64:
		if g.hit() {
			v.SetFloat(pick(g.r, 0, -1, math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, math.SmallestNonzeroFloat64, 0.5, 7*86400))
		}
	case reflect.String:
		if g.hit() {
			v.SetString(pick(g.r, names...))
		}
	}
}

var names = []string{"", "g", "payments", "<script>alert(1)</script>", "a\x1b[2Jb", "\xff\xfe", "it's \"quoted\"\n", strings.Repeat("x", 300), "%s%d", "{{.}}", "\u202eevil"}

// page is made from its template once.
var page = func() func(web.View) http.Handler {
	var view web.View
	page, err := web.Page(func() web.View { return view })
	if err != nil {
		panic(err)
	}
	return func(v web.View) http.Handler {
		view = v
		return page
	}
}()

// nonsense is what no sentence may hold.
var nonsense = regexp.MustCompile(`NaN|\bInf|%!|-9,223|-9223372`)

// contradict are pairs of sentences that one page cannot hold of one group and
// topic: what is said of one fact must agree.
var contradict = [][2]string{
	{"their markers are gone: a reset to earliest", "The oldest marker is older than anything the broker still has."},
	{"their markers are gone: a reset to earliest", "nothing younger was seen to vanish"},
	{"their markers are gone: a reset to earliest", "Markers are pruned at a safe age."},
	{"their markers are gone: a reset to earliest", "Every record on the broker that the group has passed still has its marker"},
	{"lies beyond the log", "The group keeps up."},
	{"has markers and no committed offset: expired", "Offsets follow the database closely"},
	{"has markers and no committed offset: expired", "Its committed offsets are there."},
	{"There is no marker to prune.", "The oldest marker should have been pruned"},
	{"applied again, also a second later", "A redelivered event hits the unique index"},
}

func contradictions(lines []checklist.Line) (found []string) {
	said := map[[3]string]string{}
	for _, l := range lines {
		key := [3]string{l.Database, l.Group, l.Topic}
		said[key] += l.Rule + ": " + l.Meaning + "\n"
	}
	for key, text := range said {
		for _, pair := range contradict {
			if strings.Contains(text, pair[0]) && strings.Contains(text, pair[1]) {
				found = append(found, fmt.Sprintf("%q: %q and %q", key, pair[0], pair[1]))
			}
		}
	}
	return found
}

// complaint is what is wrong with a report; kind is told once.
type complaint struct{ kind, text string }

// complaints judges the facts, writes the verdicts in every form, and says what
// is wrong with them.
func complaints(f checklist.Facts) (found []complaint) {
	bad := func(kind, format string, args ...any) {
		found = append(found, complaint{kind, fmt.Sprintf(format, args...)})
	}
	report := checklist.NewReport(f)
	for _, l := range report.Lines {
		if l.Rule == "not-judged" {
			bad(l.Meaning, "%s on %s", l.Group, l.Topic)
		}
		text := strings.Join(append([]string{l.Value, l.Threshold, l.Meaning, l.Remedy}, l.Evidence...), "\n")
		if found := nonsense.FindString(text); found != "" {
			bad(l.Rule+" says "+found, "%s", text)
		}
		if l.Verdict == checklist.OK && !seen(f, l) {
			bad(l.Rule+" is ok and nothing was seen", "%+v", l)
		}
		if l.Meaning == "" || l.Title == "" {
			bad(l.Rule+" says nothing", "%+v", l)
		}
		if l.Verdict == checklist.OK && l.Remedy != "" || l.Verdict == checklist.Violated && l.Remedy == "" {
			bad(l.Rule+" and its remedy", "%s: %q", l.Verdict, l.Remedy)
		}
	}
	for _, c := range contradictions(report.Lines) {
		bad("two lines contradict each other", "%s", c)
	}
	var text, machine bytes.Buffer
	if err := errors.Join(report.Text(&text, true, 80), report.JSON(&machine)); err != nil {
		bad("the report", "%v", err)
	}
	if !utf8.Valid(text.Bytes()) || strings.Contains(strings.ReplaceAll(text.String(), "\x1b[", ""), "\x1b") || strings.Contains(text.String(), "\x1b[2J") {
		bad("the text is not fit for a terminal", "%q", text.String())
	}
	page := page(web.View{Now: f.Now, Refresh: 15 * time.Second, Sources: f.Sources, Lines: report.Lines, Notes: report.Notes})
	rec := httptest.NewRecorder()
	page.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/", nil))
	if rec.Code != http.StatusOK || !utf8.Valid(rec.Body.Bytes()) || strings.Contains(rec.Body.String(), "<script>alert") {
		bad("the page", "%d", rec.Code)
	}
	return found
}

// A topic without end against markers that are kept for a while: the finding
// is told, and nothing runs for ever.
func TestUnlimitedTopicAgainstConfiguredRetention(t *testing.T) {
	w := healthy()
	w.topic.Retention.Value.Seconds.Value, w.topic.Retention.Value.WorstCaseSeconds.Value = math.Inf(1), math.Inf(1)
	w.compared.Compare(retention.Numbers{Topic: known(span.Unlimited), WorstCase: known(span.Unlimited), Configured: known(8 * day)}, 1.1)
	w.lines()
	for _, c := range complaints(w.Facts) {
		t.Errorf("%s: %s", c.kind, c.text)
	}
	i := slices.IndexFunc(checklist.Evaluate(w.Facts), func(l checklist.Line) bool { return l.Rule == "retention-margin" })
	if l := checklist.Evaluate(w.Facts)[i]; l.Verdict != checklist.Warning || l.Value != "records stay for ever" {
		t.Errorf("%+v", l)
	}
}
