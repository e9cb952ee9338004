package checklist

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// ReportVersion is the version of the JSON report's shape. It grows when a
// field changes its meaning or goes; new fields do not change it.
const ReportVersion = 1

// Report is one audit.
type Report struct {
	Version int       `json:"version"`
	At      time.Time `json:"at"`
	// Verdict is the worst of the lines.
	Verdict Verdict `json:"verdict"`
	// Counts of the lines by verdict.
	Counts map[string]int `json:"counts"`
	// Unread names the sources that could not be read, and why.
	Unread []Unread `json:"unread,omitempty"`
	Lines  []Line   `json:"lines"`
	// Notes say what was left out.
	Notes []string `json:"notes,omitempty"`
}

// Unread is a source that could not be read, whole or in part.
type Unread struct {
	Source string `json:"source"`
	// Entity is the part that could not be read; empty for all of it.
	Entity string `json:"entity,omitempty"`
	Error  string `json:"error"`
}

// NewReport judges the facts.
func NewReport(f Facts) Report {
	r := Report{Version: ReportVersion, At: f.Now.UTC(), Lines: WorstFirst(Evaluate(f)), Notes: LeftOut(f), Counts: map[string]int{}, Unread: f.unmatched()}
	r.Verdict = Worst(r.Lines)
	for _, v := range []Verdict{Violated, Warning, Unknown, OK} {
		r.Counts[v.String()] = Count(r.Lines, v)
	}
	for _, s := range f.Sources {
		switch {
		case s.Err != nil:
			r.Unread = append(r.Unread, Unread{Source: s.ID.String(), Error: s.Err.Error()})
		case s.LastSuccess.IsZero():
			r.Unread = append(r.Unread, Unread{Source: s.ID.String(), Error: "it did not answer before the audit ended"})
		}
		for _, p := range s.Problems {
			r.Unread = append(r.Unread, Unread{Source: s.ID.String(), Entity: p.Entity, Error: p.Err.Error()})
		}
	}
	return r
}

// Whole says whether every source could be read; parts of one may be missing.
func (r Report) Whole() bool {
	for _, u := range r.Unread {
		if u.Entity == "" {
			return false
		}
	}
	return true
}

// Fails says whether a line is at least as bad as the limit, Warning or
// Violated.
func (r Report) Fails(limit Verdict) bool {
	return Count(r.Lines, Violated) > 0 || limit == Warning && Count(r.Lines, Warning) > 0
}

// JSON writes the report for machines.
func (r Report) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// Text writes the report for a person, worst first. Colour is for terminals.
func (r Report) Text(w io.Writer, colour bool, width int) error {
	p := printer{colour: colour, width: max(40, min(width, 110))}
	for _, l := range r.Lines {
		if !l.Outside && l.Unasked == "" {
			p.line(l)
		}
	}
	p.unread(r.Unread)
	for _, n := range r.Notes {
		p.paragraph("", n)
	}
	if len(r.Notes) > 0 {
		p.b.WriteByte('\n')
	}
	p.unasked(r.Lines)
	fmt.Fprintf(&p.b, "%d violated, %d warning, %d unknown, %d ok\n",
		r.Counts["violated"], r.Counts["warning"], r.Counts["unknown"], r.Counts["ok"])
	_, err := io.WriteString(w, p.b.String())
	return err
}

type printer struct {
	b      strings.Builder
	colour bool
	width  int
}

var (
	signs   = map[Verdict]string{Violated: "✖", Warning: "▲", Unknown: "?", OK: "✔"}
	colours = map[Verdict]string{Violated: "31", Warning: "33", Unknown: "90", OK: "32"}
)

func (p *printer) line(l Line) {
	verdict := fmt.Sprintf("%s %-8s", signs[l.Verdict], l.Verdict)
	if p.colour {
		verdict = "\x1b[" + colours[l.Verdict] + "m" + verdict + "\x1b[0m"
	}
	title, subject := l.Title, l.subject()
	if subject != "" && len(indent)+len([]rune(title))+len([]rune(subject))+4 <= p.width {
		title, subject = title+"  ("+subject+")", ""
	}
	fmt.Fprintf(&p.b, "%s  %s\n", verdict, printable(title))
	if subject != "" {
		p.paragraph("", "("+subject+")")
	}
	if l.Value != "" || l.Threshold != "" {
		var parts []string
		if l.Value != "" {
			parts = append(parts, "now: "+l.Value)
		}
		if l.Threshold != "" {
			parts = append(parts, "wanted: "+l.Threshold)
		}
		p.paragraph("", strings.Join(parts, "; "))
	}
	p.paragraph("", l.Meaning)
	if l.Remedy != "" {
		p.paragraph("→ ", l.Remedy)
	}
	for _, e := range l.Evidence {
		p.paragraph("· ", e)
	}
	p.b.WriteByte('\n')
}

// unread is one block of what could not be read. What is said of several is
// said once.
func (p *printer) unread(unread []Unread) {
	if len(unread) == 0 {
		return
	}
	p.b.WriteString("Could not be read:\n")
	var errs []string
	of := map[string][]string{}
	for _, u := range unread {
		if of[u.Error] == nil {
			errs = append(errs, u.Error)
		}
		of[u.Error] = append(of[u.Error], strings.TrimSpace(u.Source+" "+u.Entity))
	}
	for _, err := range errs {
		p.paragraph("· ", strings.Join(of[err], ", ")+": "+err)
	}
	p.b.WriteByte('\n')
}

// unasked is one block of what was not looked at, and what lets it be.
func (p *printer) unasked(lines []Line) {
	var asks []string
	titles := map[string][]string{}
	for _, l := range lines {
		ask := l.Unasked
		if l.Outside && ask == "" {
			ask = "nobody can see these from outside: look at the consumer itself"
		}
		if ask == "" {
			continue
		}
		if titles[ask] == nil {
			asks = append(asks, ask)
		}
		if !slices.Contains(titles[ask], l.Title) {
			titles[ask] = append(titles[ask], l.Title)
		}
	}
	if len(asks) == 0 {
		return
	}
	p.b.WriteString("Not looked at:\n")
	for _, ask := range asks {
		p.paragraph("· ", strings.Join(titles[ask], " "))
		p.paragraph("→ ", ask)
	}
	p.b.WriteByte('\n')
}

func (l Line) subject() string {
	switch {
	case l.Group != "" && l.Topic != "":
		return l.Group + " on " + l.Topic
	case l.Group != "":
		return l.Group
	}
	return l.Database
}

const indent = "            "

// paragraph wraps a text below a line's title.
func (p *printer) paragraph(mark, text string) {
	limit := p.width - len(indent) - 2
	column := 0
	for i, word := range strings.Fields(printable(text)) {
		n := len([]rune(word))
		switch {
		case i == 0:
			p.b.WriteString(indent + mark)
		case column+1+n > limit:
			p.b.WriteString("\n" + indent + strings.Repeat(" ", len([]rune(mark))))
			column = 0
		default:
			p.b.WriteByte(' ')
			column++
		}
		p.b.WriteString(word)
		column += n
	}
	p.b.WriteByte('\n')
}

// printable keeps a hostile name from steering the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || r == '\r' {
			return ' '
		}
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '\uFFFD'
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}
