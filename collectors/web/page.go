package web

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"oncewatch/collectors/checklist"
	"oncewatch/collectors/poll"
	"oncewatch/collectors/replay"
	"oncewatch/collectors/span"
)

//go:embed page.html replay.html
var pageFiles embed.FS

// View is what the page shows, as of one moment.
type View struct {
	Now     time.Time
	Refresh time.Duration
	Version string
	// Dashboards is the address of the Grafana that has them; none if empty.
	Dashboards string
	// Metrics is the path under which they are served, without the first slash.
	Metrics string
	Sources []poll.Status
	Lines   []checklist.Line
	// Resets are how far back groups may be reset.
	Resets []Reset
	// Notes are said below the lines: what was left out, and why.
	Notes []string
}

// Reset is how far back a group may be reset on a topic without applying
// anything twice.
type Reset struct {
	Database, Group, Topic string
	// SafeBackTo is the earliest such time; zero where none is known.
	SafeBackTo time.Time
}

// Link is the page about another target.
func (r Reset) Link() string {
	return "replay?" + replay.Question{Database: r.Database, Group: r.Group, Topic: r.Topic}.Values().Encode()
}

// Until is the time, as it may be typed.
func (r Reset) Until() string { return replay.NotBefore(r.SafeBackTo) }

// Page renders the checklist for a person.
func Page(view func() View) (http.Handler, error) {
	tmpl, err := template.New("page.html").Funcs(template.FuncMap{
		"ago": ago,
	}).ParseFS(pageFiles, "page.html")
	if err != nil {
		return nil, fmt.Errorf("page template: %w", err)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var b bytes.Buffer
		if err := render(tmpl, &b, view, r.URL.Query()); err != nil {
			http.Error(w, "The page could not be written: "+err.Error(), http.StatusInternalServerError)
			return
		}
		protect(w, "text/html; charset=utf-8")
		_, _ = w.Write(bytes.ToValidUTF8(b.Bytes(), []byte("\uFFFD")))
	}), nil
}

// protect sets the headers of an answer: names of topics and groups come from
// outside, and nothing of it runs but the page's one script, which keeps open what
// a person has opened.
func protect(w http.ResponseWriter, kind string) {
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src "+scriptHash)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
}

// render turns a panic into an error: it costs this page.
func render(tmpl *template.Template, b *bytes.Buffer, view func() View, query url.Values) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	return tmpl.Execute(b, arrange(view(), query))
}

// card is one consumer group on one topic.
type card struct {
	Database, Group, Topic string
	Verdict                checklist.Verdict
	Lines                  []checklist.Line // the six of the checklist, in its order
	More                   []checklist.Line // what else was found there, worst first
	Resets                 []Reset
}

// ID is for links to the card.
func (c card) ID() string {
	return checklist.Line{Rule: "group", Database: c.Database, Group: c.Group, Topic: c.Topic}.ID()
}

// Only is the query that shows the card by itself.
func (c card) Only() string {
	return "?" + url.Values{"database": {c.Database}, "group": {c.Group}, "topic": {c.Topic}}.Encode()
}

// Dashboard is the address of the card's group on the dashboard "Why not?". The
// group's name there leads back to the card.
func (l layout) Dashboard(c card) string {
	query := url.Values{"var-consumer_group": {c.Group}}
	for name, value := range map[string]string{"var-database": c.Database, "var-topic": c.Topic} {
		if value != "" {
			query.Set(name, value)
		}
	}
	return strings.TrimSuffix(l.Dashboards, "/") + "/d/oncewatch-group?" + query.Encode()
}

// shown is how many cards are written out; the rest is one line each.
const shown = 25

//go:embed page.js
var script string

// scriptHash lets the page's own script run and no other.
var scriptHash = func() string {
	sum := sha256.Sum256([]byte(script))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}()

type layout struct {
	View
	Seconds  int
	Verdict  checklist.Verdict
	Headline string
	Cards    []card
	Folded   []card // one line each
	Alone    bool   // one group is shown, the others are not
	Script   template.JS
	General  []checklist.Line
	Failing  int
}

// arrange groups the lines into cards, the worst card first.
func arrange(v View, query url.Values) layout {
	l := layout{View: v, Script: template.JS(script), Alone: query.Has("group"), Seconds: max(5, int(v.Refresh.Seconds())), Verdict: checklist.Worst(v.Lines)}
	index := map[[3]string]int{}
	for _, line := range v.Lines {
		if line.Group == "" {
			l.General = append(l.General, line)
			continue
		}
		key := [3]string{line.Database, line.Group, line.Topic}
		i, ok := index[key]
		if !ok {
			i = len(l.Cards)
			index[key] = i
			l.Cards = append(l.Cards, card{Database: line.Database, Group: line.Group, Topic: line.Topic})
		}
		c := &l.Cards[i]
		if line.Number > 0 {
			c.Lines = append(c.Lines, line)
		} else {
			c.More = append(c.More, line)
		}
	}
	for _, r := range v.Resets {
		for i := range l.Cards { // a table without topics has one card for all of them
			if c := &l.Cards[i]; c.Database == r.Database && c.Group == r.Group && (c.Topic == r.Topic || c.Topic == "") {
				c.Resets = append(c.Resets, r)
			}
		}
	}
	for i := range l.Cards {
		c := &l.Cards[i]
		slices.SortStableFunc(c.Lines, func(a, b checklist.Line) int { return a.Number - b.Number })
		c.More = checklist.WorstFirst(c.More)
		c.Verdict = checklist.Worst(append(slices.Clone(c.Lines), c.More...))
	}
	rank := func(v checklist.Verdict) int { return slices.Index(worstFirst, v) }
	slices.SortStableFunc(l.Cards, func(a, b card) int { return rank(a.Verdict) - rank(b.Verdict) })
	l.General = checklist.WorstFirst(l.General)
	if l.Alone {
		l.General = nil
		l.Cards = slices.DeleteFunc(l.Cards, func(c card) bool {
			other := func(key, value string) bool { return query.Has(key) && query.Get(key) != value }
			return other("database", c.Database) || other("group", c.Group) || other("topic", c.Topic)
		})
	}
	if len(l.Cards) > shown {
		l.Cards, l.Folded = l.Cards[:shown], l.Cards[shown:]
	}
	for _, s := range v.Sources {
		if s.Err != nil || s.Stale {
			l.Failing++
		}
	}
	l.Headline = headline(v.Lines, l.Failing)
	return l
}

var worstFirst = []checklist.Verdict{checklist.Violated, checklist.Warning, checklist.Unknown, checklist.OK}

func headline(lines []checklist.Line, failing int) string {
	var parts []string
	say := func(n int, one, many string) {
		switch {
		case n == 1:
			parts = append(parts, "1 "+one)
		case n > 1:
			parts = append(parts, fmt.Sprintf("%d %s", n, many))
		}
	}
	say(checklist.Count(lines, checklist.Violated), "line is violated", "lines are violated")
	say(checklist.Count(lines, checklist.Warning), "line needs attention", "lines need attention")
	unknown, outside := 0, 0
	for _, l := range lines {
		switch {
		case l.Outside:
			outside++
		case l.Verdict == checklist.Unknown:
			unknown++
		}
	}
	say(failing, "source cannot be read", "sources cannot be read")
	switch {
	case len(parts) > 0:
		return strings.Join(parts, ", ") + "."
	case unknown > 0:
		return fmt.Sprintf("Nothing that was seen is wrong; %d of %d lines are not known.", unknown, len(lines)-outside)
	case len(lines) == 0:
		return "Nothing to judge yet: no consumer group with markers or commits has been seen."
	}
	return "Every line that can be seen from here holds."
}

// ago says how long before now a time was, in one unit.
func ago(now, t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return span.Text(now.Sub(t)) + " ago"
}
