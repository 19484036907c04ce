package app

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"titan/libtitan/manifest"
)

// Bar is a progress bar on stderr's last line; log lines go above it. A nil *Bar draws nothing, so that callers
// need not ask. Any goroutine may move it.
type Bar struct {
	screen *screen
	name   string
	total  int64
	format func(n int64) string
	start  time.Time

	done  int64     // under screen.mu, as is
	drawn time.Time // when it was last drawn
}

const (
	clearLine   = "\r\x1b[K"
	redrawEvery = 100 * time.Millisecond
)

// Bytes draws a bar over total bytes, with bytes a second. It is nil where none is to be drawn: stderr is no
// terminal, --quiet, --no-progress or NO_COLOR. One bar at a time; end it with Close.
func (e *Env) Bytes(name string, total int64) *Bar { return e.bar(name, total, manifest.HumanBytes) }

// Steps draws a bar over total steps.
func (e *Env) Steps(name string, total int64) *Bar { return e.bar(name, total, Grouped) }

func (e *Env) bar(name string, total int64, format func(int64) string) *Bar {
	s := e.screen
	if e.common.quiet || e.common.noProgress || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" || !isTerminal(s.w) {
		return nil
	}
	b := &Bar{screen: s, name: name, total: total, format: format, start: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bar = b
	return b
}

// Add moves the bar on by n.
func (b *Bar) Add(n int64) {
	if b == nil {
		return
	}
	b.screen.mu.Lock()
	defer b.screen.mu.Unlock()
	b.done += n
	if now := time.Now(); now.Sub(b.drawn) >= redrawEvery {
		b.drawn = now
		io.WriteString(b.screen.w, clearLine+b.line(now))
	}
}

// Close takes the bar off the screen.
func (b *Bar) Close() {
	if b == nil {
		return
	}
	b.screen.mu.Lock()
	defer b.screen.mu.Unlock()
	b.screen.bar = nil
	io.WriteString(b.screen.w, clearLine)
}

// line is the bar at now, as wide as the terminal.
func (b *Bar) line(now time.Time) string {
	share := float64(b.done) / float64(max(b.total, b.done, 1))
	passed := now.Sub(b.start).Seconds()
	rate, left := float64(b.done)/max(passed, 1e-3), "?"
	if b.done > 0 {
		left = (time.Duration(min(passed*(1/share-1), 1e6)) * time.Second).String()
	}
	text := fmt.Sprintf(" %3.0f%%  %s / %s  %s/s  %s left", 100*share, b.format(b.done), b.format(b.total), b.format(int64(rate)), left)
	width := 80
	if f, ok := b.screen.w.(*os.File); ok {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 0 {
			width = w
		}
	}
	cells := max(0, width-len(b.name)-len(text)-4)
	full := int(share * float64(cells))
	return b.name + " [" + strings.Repeat("=", full) + strings.Repeat(" ", cells-full) + "]" + text
}
