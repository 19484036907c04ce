package app

import (
	"context"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"
)

// screen is stderr, shared by log lines, tables and a progress bar: what is written while a bar is drawn
// appears above it.
type screen struct {
	mu  sync.Mutex
	w   io.Writer
	bar *Bar // nil: none is drawn
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar == nil {
		return s.w.Write(p)
	}
	now := time.Now()
	s.bar.drawn = now
	if _, err := io.WriteString(s.w, clearLine+string(p)+s.bar.line(now)); err != nil {
		return 0, err
	}
	return len(p), nil
}

func newLogger(w io.Writer, tool, format, level string, quiet bool) *slog.Logger {
	var least slog.Level
	if quiet || least.UnmarshalText([]byte(level)) != nil {
		least = slog.LevelError
	}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: least})).With("tool", tool)
	}
	return slog.New(&lineHandler{w: w, tool: tool, level: least})
}

// lineHandler writes a record as people read it: "tool: warning: message key=value". The attribute "rank" goes
// in front, as in torchtitan's console: "[rank3] tool: ...".
type lineHandler struct {
	w     io.Writer
	tool  string
	level slog.Level
	rank  string
	attrs string
	group string
}

var levelWords = map[slog.Level]string{slog.LevelDebug: "debug: ", slog.LevelWarn: "warning: "}

func (h *lineHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level }

func (h *lineHandler) Handle(_ context.Context, r slog.Record) error {
	line := *h
	r.Attrs(func(a slog.Attr) bool {
		line.add(a)
		return true
	})
	_, err := io.WriteString(h.w, line.rank+h.tool+": "+levelWords[r.Level]+r.Message+line.attrs+"\n")
	return err
}

func (h *lineHandler) add(a slog.Attr) {
	text := a.Value.Resolve().String()
	if a.Key == "rank" && h.group == "" {
		h.rank = "[rank" + text + "] "
		return
	}
	if strings.ContainsAny(text, " \t\n\"=") || text == "" {
		text = strconv.Quote(text)
	}
	h.attrs += " " + h.group + a.Key + "=" + text
}

func (h *lineHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	next := *h
	for _, a := range attrs {
		next.add(a)
	}
	return &next
}

func (h *lineHandler) WithGroup(name string) slog.Handler {
	next := *h
	next.group += name + "."
	return &next
}

// ofRank passes on errors and what has the attribute "rank".
type ofRank struct{ slog.Handler }

func (h ofRank) Handle(ctx context.Context, r slog.Record) error {
	named := r.Level >= slog.LevelError
	r.Attrs(func(a slog.Attr) bool {
		named = named || a.Key == "rank"
		return !named
	})
	if !named {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}
