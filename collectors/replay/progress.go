package replay

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Bar shows the progress of a verification: a bar that is drawn again on a
// terminal, a line every ten seconds elsewhere.
type Bar struct {
	w        io.Writer
	terminal bool
	width    int
	last     time.Duration
	drawn    bool
}

// NewBar makes one; width is the terminal's, 0 where w is none.
func NewBar(w io.Writer, width int) *Bar { return &Bar{w: w, terminal: width > 0, width: width} }

// Show draws the bar where it is time to.
func (b *Bar) Show(p Progress) {
	every := 10 * time.Second
	if b.terminal {
		every = 200 * time.Millisecond
	}
	if p.Elapsed-b.last < every {
		return
	}
	b.last = p.Elapsed
	rate := float64(p.Records) / p.Elapsed.Seconds()
	text := fmt.Sprintf("%s records, %s/s", count(p.Records), count(int64(rate)))
	if p.Done > 0 && p.Total > 0 {
		left := time.Duration(float64(p.Elapsed) / float64(p.Done) * float64(p.Total-p.Done))
		text += fmt.Sprintf(", %d %%, %s left", 100*p.Done/p.Total, left.Round(time.Second))
	}
	if !b.terminal {
		_, _ = fmt.Fprintln(b.w, text)
		return
	}
	b.drawn = true
	if room := b.width - len(text) - 4; room >= 10 && p.Total > 0 {
		room = min(room, 40)
		full := int(int64(room) * min(p.Done, p.Total) / p.Total)
		text = "[" + strings.Repeat("=", full) + strings.Repeat(" ", room-full) + "] " + text
	}
	_, _ = fmt.Fprintf(b.w, "\r\x1b[K%s", text)
}

// Clear takes the bar away.
func (b *Bar) Clear() {
	if b.drawn {
		_, _ = fmt.Fprint(b.w, "\r\x1b[K")
	}
}
