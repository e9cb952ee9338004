package conform

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Report is what was found on all pages.
type Report struct {
	// Version grows when a field changes its meaning.
	Version  int           `json:"version"`
	Conforms bool          `json:"conforms"`
	Pages    []PageSummary `json:"pages"`
	Findings []Finding     `json:"findings"`
	// Unseen are the programs of which no page has anything.
	Unseen []string `json:"unseen,omitempty"`
}

// PageSummary is a page that was read.
type PageSummary struct {
	Source string `json:"source"`
	Series int    `json:"series"`
}

// JSON writes the report for machines.
func (r *Report) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if r.Findings == nil {
		r.Findings = []Finding{}
	}
	return e.Encode(r)
}

// Text writes the report for a person.
func (r *Report) Text(w io.Writer) error {
	var b strings.Builder
	wrong := 0
	for _, f := range r.Findings {
		mark := "·"
		if f.Wrong {
			mark = "✖"
			wrong++
		}
		fmt.Fprintf(&b, "%s %s: %s\n", mark, f.Metric, f.What)
		if len(r.Pages) > 1 {
			fmt.Fprintf(&b, "    on %s\n", strings.Join(f.Pages, ", "))
		}
		for _, u := range []struct {
			who   string
			names []string
		}{{"alerts", f.Alerts}, {"panels", f.Panels}, {"checklist lines", f.Lines}} {
			if len(u.names) > 0 {
				fmt.Fprintf(&b, "    %s that read it: %s\n", u.who, some(u.names))
			}
		}
		if f.Remedy != "" {
			fmt.Fprintf(&b, "    → %s\n", f.Remedy)
		}
	}
	for _, p := range r.Unseen {
		what := "consumer"
		if p == "oncewatch" {
			what = "exporter"
		}
		fmt.Fprintf(&b, "No page is one of the %s: its metrics were not looked for.\n", what)
	}
	for _, p := range r.Pages {
		fmt.Fprintf(&b, "Read: %s (%d series)\n", p.Source, p.Series)
	}
	if r.Conforms {
		fmt.Fprintf(&b, "Conforms")
	} else {
		fmt.Fprintf(&b, "Does not conform: %d wrong", wrong)
	}
	if notes := len(r.Findings) - wrong; notes > 0 {
		fmt.Fprintf(&b, "; %d that not everybody exports (·)", notes)
	}
	b.WriteString(".\n")
	_, err := io.WriteString(w, printable(b.String()))
	return err
}

// some are the first of many names; JSON has them all.
func some(names []string) string {
	const most = 6
	if more := len(names) - most; more > 1 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}

// printable keeps what others wrote from steering the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '\uFFFD'
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}
