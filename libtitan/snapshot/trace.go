package snapshot

import (
	"encoding/json"
	"io"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"titan/libtitan/alloc"
)

// schema is the form of our own traces: an Arrow IPC stream, its buffers compressed with zstd, one row an event. The
// first row is no event but the Settings, as JSON in owner.
var schema = arrow.NewSchema([]arrow.Field{
	{Name: "time_us", Type: arrow.PrimitiveTypes.Int64},       // microseconds of Unix time
	{Name: "action", Type: arrow.BinaryTypes.String},          // as PyTorch's traces name them; use and wait
	{Name: "addr", Type: arrow.PrimitiveTypes.Uint64},         //
	{Name: "size", Type: arrow.PrimitiveTypes.Int64},          // bytes
	{Name: "stream", Type: arrow.PrimitiveTypes.Uint64},       // whose pool it is
	{Name: "other_stream", Type: arrow.PrimitiveTypes.Uint64}, // of use and wait
	{Name: "owner", Type: arrow.BinaryTypes.String},           // the FQN that asked for the memory
}, nil)

const settingsAction = "settings"

// Settings are what a trace says of its allocator.
type Settings struct {
	Version      int    `json:"version"`
	Device       int    `json:"device"`
	Policy       string `json:"policy"` // of the allocator, or Arena
	MaxSplitSize int64  `json:"max_split_size"`
	Expandable   bool   `json:"expandable_segments"`
}

// Arena is the policy of a trace without an allocator: values lie where a plan put them.
const Arena = "arena"

// traceVersion is what this package writes and reads.
const traceVersion = 1

// batchRows is how many events are compressed together.
const batchRows = 1 << 14

// Writer writes a trace while it happens: its Event suits alloc.Options.Trace. Calls must not overlap.
type Writer struct {
	out  *ipc.Writer
	rows *array.RecordBuilder
	n    int
	err  error
}

// NewWriter starts the trace of a device's allocator.
func NewWriter(w io.Writer, device int, c alloc.Config) (*Writer, error) {
	return newWriter(w, Settings{traceVersion, device, c.Policy.String(), c.MaxSplitSize, c.Expandable})
}

// NewArenaWriter starts the trace of a device whose values lie in a planned arena.
func NewArenaWriter(w io.Writer, device int) (*Writer, error) {
	return newWriter(w, Settings{Version: traceVersion, Device: device, Policy: Arena})
}

func newWriter(w io.Writer, s Settings) (*Writer, error) {
	first, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	t := &Writer{out: ipc.NewWriter(w, ipc.WithSchema(schema), ipc.WithZstd()), rows: array.NewRecordBuilder(memory.DefaultAllocator, schema)}
	t.row(settingsAction, alloc.Event{Owner: string(first)})
	t.flush() // so that a reader of a pipe sees at once what it is
	return t, t.err
}

// Event adds an event. The first error of all sticks, and comes out of Close.
func (t *Writer) Event(e alloc.Event) {
	t.row(e.Action.String(), e)
	if t.n == batchRows {
		t.flush()
	}
}

func (t *Writer) row(action string, e alloc.Event) {
	t.rows.Field(0).(*array.Int64Builder).Append(e.Time)
	t.rows.Field(1).(*array.StringBuilder).Append(action)
	t.rows.Field(2).(*array.Uint64Builder).Append(e.Addr)
	t.rows.Field(3).(*array.Int64Builder).Append(e.Size)
	t.rows.Field(4).(*array.Uint64Builder).Append(uint64(e.Stream))
	t.rows.Field(5).(*array.Uint64Builder).Append(uint64(e.Other))
	t.rows.Field(6).(*array.StringBuilder).Append(e.Owner)
	t.n++
}

func (t *Writer) flush() {
	batch := t.rows.NewRecord()
	defer batch.Release()
	if t.n > 0 && t.err == nil {
		t.err = t.out.Write(batch)
	}
	t.n = 0
}

// Close writes what is left and ends the stream; it does not close what is below.
func (t *Writer) Close() error {
	t.flush()
	t.rows.Release()
	if err := t.out.Close(); t.err == nil {
		t.err = err
	}
	return t.err
}
