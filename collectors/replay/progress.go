package replay

import (
	"fmt"
	"io"
	"strings"
	"time"

	"oncewatch/collectors/number"
)

// Bar shows the progress of a verification: a bar that is drawn again on a
// terminal, a line every ten seconds elsewhere.
type Bar struct {
	w        io.Writer
	terminal bool
	width    int
	last     time.Duration
	began    time.Time
	drawn    bool
}

// NewBar makes one; width is the terminal's, 0 where w is none.
func NewBar(w io.Writer, width int) *Bar { return &Bar{w: w, terminal: width > 0, width: width} }

// Show draws the bar where it is time to.
func (b *Bar) Show(p Progress) {
	rate := float64(p.Records) / max(p.Elapsed.Seconds(), 0.001)
	text := fmt.Sprintf("%s records, %s/s", number.Grouped(p.Records), number.Grouped(int64(rate)))
	if p.Total > 0 {
		text += fmt.Sprintf(", %d %%", 100*p.Done/p.Total)
	}
	b.show(p.Elapsed, p.Done, p.Total, text)
}

func (b *Bar) show(elapsed time.Duration, done, total int64, text string) {
	every := 10 * time.Second
	if b.terminal {
		every = 200 * time.Millisecond
	}
	if elapsed-b.last < every {
		return
	}
	b.last = elapsed
	if done > 0 && total > 0 {
		left := time.Duration(float64(elapsed) / float64(done) * float64(total-done))
		text += fmt.Sprintf(", %s left", left.Round(time.Second))
	}
	if !b.terminal {
		_, _ = fmt.Fprintln(b.w, text)
		return
	}
	b.drawn = true
	if room := b.width - len(text) - 4; room >= 10 && total > 0 {
		room = min(room, 40)
		full := int(int64(room) * min(done, total) / total)
		text = "[" + strings.Repeat("=", full) + strings.Repeat(" ", room-full) + "] " + text
	}
	_, _ = fmt.Fprintf(b.w, "\r\x1b[K%s", text)
}

// Counting shows how far the markers are counted, 0 to 1.
func (b *Bar) Counting(part float64) {
	if b.began.IsZero() {
		b.began = time.Now()
	}
	const parts = 10_000
	elapsed := time.Since(b.began)
	b.show(elapsed, int64(part*parts), parts, fmt.Sprintf("counting the markers, %.0f %%", 100*part))
}

// Clear takes the bar away.
func (b *Bar) Clear() {
	if b.drawn {
		_, _ = fmt.Fprint(b.w, "\r\x1b[K")
	}
}
