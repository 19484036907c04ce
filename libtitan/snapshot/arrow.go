package snapshot

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/ipc"

	"titan/libtitan/alloc"
	"titan/libtitan/arrowfile"
)

// readArrow reads a trace that Writer wrote. A process that died leaves no end mark, which is no error.
func readArrow(data []byte) (s *Snapshot, err error) {
	err = arrowfile.Guard(func() error {
		s, err = parseArrow(data)
		return err
	})
	return s, err
}

func parseArrow(data []byte) (*Snapshot, error) {
	first, err := schemaMessage()
	if err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(data, first) {
		return nil, errors.New("an Arrow stream, but not of a memory trace of this version")
	}
	r, err := arrowfile.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return nil, err
	}
	a := &arrowReader{builder: newBuilder()}
	for r.Next() {
		if err := a.batch(r.Record()); err != nil {
			return nil, err
		}
	}
	if err := r.Err(); err != nil {
		return nil, fmt.Errorf("the trace is broken: %s", firstLine(err.Error()))
	}
	if a.settings.Version != traceVersion {
		return nil, fmt.Errorf("a trace of version %d: this program reads %d", a.settings.Version, traceVersion)
	}
	for range a.settings.Device {
		a.trace(nil)
	}
	a.trace(a.events)
	s, err := a.finish()
	if err == nil {
		s.Planned = a.settings.Policy == Arena
	}
	return s, err
}

// schemaMessage is how every trace begins. The Arrow module believes what a schema says of its size, so no other one
// is let near it.
func schemaMessage() ([]byte, error) {
	var b bytes.Buffer
	err := ipc.NewWriter(&b, ipc.WithSchema(schema), ipc.WithZstd()).Close()
	return b.Bytes()[:max(0, b.Len()-8)], err // less the end mark
}

func firstLine(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	return text[:min(len(text), 200)]
}

// arrowReader collects the events of record batches.
type arrowReader struct {
	*builder
	events   []Event
	settings Settings
	started  bool
}

func (a *arrowReader) batch(rows arrow.Record) error {
	var (
		times   = rows.Column(0).(*array.Int64)
		actions = rows.Column(1).(*array.String)
		addrs   = rows.Column(2).(*array.Uint64)
		sizes   = rows.Column(3).(*array.Int64)
		streams = rows.Column(4).(*array.Uint64)
		others  = rows.Column(5).(*array.Uint64)
		owners  = rows.Column(6).(*array.String)
	)
	for i := range int(rows.NumRows()) {
		if !a.started {
			if err := a.start(actions.Value(i), owners.Value(i)); err != nil {
				return err
			}
			continue
		}
		r := rawEvent{action: actions.Value(i), addr: int64(addrs.Value(i)), size: sizes.Value(i), stream: int64(streams.Value(i)), time: times.Value(i)}
		if name := owners.Value(i); name != "" {
			r.owner = a.named(name)
		}
		e, err := a.event(&r)
		if err != nil {
			return fmt.Errorf("event %d: %w", len(a.events), err)
		}
		e.Other = alloc.Stream(others.Value(i))
		a.events = append(a.events, e)
	}
	return nil
}

// start reads the first row.
func (a *arrowReader) start(action, text string) error {
	if action != settingsAction {
		return errors.New("the trace does not begin with its settings")
	}
	if err := json.Unmarshal([]byte(text), &a.settings); err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	if a.settings.Device < 0 || a.settings.Device > 4096 {
		return fmt.Errorf("settings: device %d is out of range", a.settings.Device)
	}
	a.config.MaxSplitSize, a.config.Expandable, a.started = a.settings.MaxSplitSize, a.settings.Expandable, true
	return nil
}
