package app

import (
	"os"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// Bar is a progress bar on stderr. A nil *Bar draws nothing, so that callers need not ask.
type Bar struct {
	screen *screen
	bars   *mpb.Progress
	bar    *mpb.Bar
}

// Bytes draws a bar over total bytes, with bytes per second. It is nil where none is to be drawn: stderr is no
// terminal, --quiet, --no-progress or NO_COLOR. One bar at a time; end it with Close.
func (e *Env) Bytes(name string, total int64) *Bar {
	return e.bar(name, total, decor.CountersKibiByte("% .1f / % .1f"), decor.AverageSpeed(decor.SizeB1024(0), " % .1f"))
}

// Steps draws a bar over total steps.
func (e *Env) Steps(name string, total int64) *Bar {
	return e.bar(name, total, decor.CountersNoUnit("%d / %d"), decor.AverageETA(decor.ET_STYLE_GO))
}

func (e *Env) bar(name string, total int64, count, rate decor.Decorator) *Bar {
	s := e.screen
	if e.common.quiet || e.common.noProgress || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" || !isTerminal(s.w) {
		return nil
	}
	b := &Bar{screen: s, bars: mpb.New(mpb.WithOutput(s.w), mpb.WithAutoRefresh())}
	b.bar = b.bars.AddBar(total, mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Name(name+" "), count), mpb.AppendDecorators(decor.Percentage(), decor.Name(" "), rate))
	s.mu.Lock()
	s.bars = b.bars
	s.mu.Unlock()
	return b
}

// Add moves the bar on by n; any goroutine may call it.
func (b *Bar) Add(n int64) {
	if b != nil {
		b.bar.IncrInt64(n)
	}
}

// Close takes the bar off the screen.
func (b *Bar) Close() {
	if b == nil {
		return
	}
	b.bar.Abort(true)
	b.bars.Wait()
	b.screen.mu.Lock()
	b.screen.bars = nil
	b.screen.mu.Unlock()
}
