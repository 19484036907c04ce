package snapshot

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"titan/libtitan/alloc"
)

// readArrow reads a trace that Writer wrote. A process that died leaves no end mark, which is no error.
func readArrow(data []byte) (s *Snapshot, err error) {
	defer func() { // the Arrow module answers some broken files with a panic
		if r := recover(); r != nil {
			s, err = nil, broken(r)
		}
	}()
	first, err := schemaMessage()
	if err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(data, first) {
		return nil, errors.New("an Arrow stream, but not of a memory trace of this version")
	}
	limit := &bounded{most: max(16<<20, 256*len(data))}
	r, err := ipc.NewReaderFromMessageReader(&messages{data}, ipc.WithAllocator(limit))
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
		return nil, broken(err)
	}
	if a.settings.Version != traceVersion {
		return nil, fmt.Errorf("a trace of version %d: this program reads %d", a.settings.Version, traceVersion)
	}
	for range a.settings.Device {
		a.trace(nil)
	}
	a.trace(a.events)
	s, err = a.finish()
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

// broken says in a line what the Arrow module met. It meets lengths that do not fit their file as slices out of bounds.
func broken(met any) error {
	text := firstLine(fmt.Sprint(met))
	if strings.Contains(text, "runtime error") {
		text = "its lengths and offsets do not fit together"
	}
	return fmt.Errorf("the trace is broken: %s", text)
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

// messages cuts data into the messages of an IPC stream (Arrow columnar format, "Encapsulated message format").
type messages struct{ left []byte }

func (m *messages) Retain()  {}
func (m *messages) Release() {}

// Message gives the next one; io.EOF is the end, marked or not.
func (m *messages) Message() (*ipc.Message, error) {
	if len(m.left) < 8 {
		return nil, io.EOF
	}
	prefix, _ := m.take(8)
	size := int64(binary.LittleEndian.Uint32(prefix[4:]))
	if binary.LittleEndian.Uint32(prefix) != 0xffffffff {
		return nil, errors.New("no message where one should begin")
	}
	if size == 0 {
		return nil, io.EOF
	}
	meta, err := m.take(size)
	if err != nil {
		return nil, err
	}
	head := memory.NewBufferBytes(meta)
	body, err := m.take(ipc.NewMessage(head, memory.NewBufferBytes(nil)).BodyLen())
	if err != nil {
		return nil, err
	}
	return ipc.NewMessage(head, memory.NewBufferBytes(body)), nil
}

func (m *messages) take(n int64) ([]byte, error) {
	if n < 0 || n > int64(len(m.left)) {
		return nil, fmt.Errorf("truncated: a message of %d bytes where %d are left", n, len(m.left))
	}
	b := m.left[:n:n]
	m.left = m.left[n:]
	return b, nil
}

// bounded refuses, by the panic that readArrow expects, buffers out of proportion to the file: there is no other way.
type bounded struct {
	memory.GoAllocator
	most int
}

func (b *bounded) Allocate(size int) []byte {
	b.check(size)
	return b.GoAllocator.Allocate(size)
}

func (b *bounded) Reallocate(size int, old []byte) []byte {
	b.check(size)
	return b.GoAllocator.Reallocate(size, old)
}

func (b *bounded) check(size int) {
	if size < 0 || size > b.most {
		panic(fmt.Errorf("a buffer of %d bytes is out of proportion to the file", size))
	}
}
