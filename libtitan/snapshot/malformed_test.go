package snapshot

import (
	"bytes"
	"compress/gzip"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/alloc"
	"titan/libtitan/exit"
	"titan/libtitan/pickle"
)

// pickled is a Python value by protocol 2 or 4.
func asPickle(t testing.TB, protocol int, v any) []byte {
	var b bytes.Buffer
	e := pickle.NewEncoder(&b, protocol)
	require.NoError(t, e.Value(v))
	require.NoError(t, e.Stop())
	return b.Bytes()
}

type dict = map[string]any

func trace(events ...any) dict { return dict{"segments": []any{}, "device_traces": []any{events}} }

func zipped(t testing.TB, data []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write(data)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return b.Bytes()
}

func TestMalformedIsRefusedInOneLine(t *testing.T) {
	event := func(change dict) dict {
		e := dict{"action": "alloc", "addr": 512, "size": 512, "stream": 0}
		for k, v := range change {
			e[k] = v
		}
		return e
	}
	segment := func(blocks ...any) dict {
		return dict{"segments": []any{dict{"device": 0, "address": 4096, "total_size": 4096, "stream": 0, "blocks": blocks}}}
	}
	block := func(addr, size int, state string) dict {
		return dict{"address": addr, "size": size, "requested_size": size, "state": state}
	}
	good, err := os.ReadFile("testdata/torch/oom_and_sizes.end.pickle")
	require.NoError(t, err)
	deep := any(1)
	for range 70 {
		deep = []any{1, deep}
	}
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"empty":               {nil, "the file is empty"},
		"text":                {[]byte("hello"), "neither a pickle"},
		"cut short":           {good[:len(good)/2], "ends before its STOP"},
		"a class":             {[]byte("\x80\x02cos\nsystem\n."), "the opcode is not allowed here"},
		"a number":            {asPickle(t, 4, 5), "no dict"},
		"another dict":        {asPickle(t, 4, dict{"model": 1}), "neither segments nor device_traces"},
		"traces no list":      {asPickle(t, 4, dict{"device_traces": 7}), "device_traces: an int where a list should be"},
		"event no dict":       {asPickle(t, 2, trace(7)), "device 0: event 0: an int where a dict should be"},
		"event without addr":  {asPickle(t, 2, trace(dict{"action": "alloc", "size": 5})), "alloc: no addr"},
		"size a string":       {asPickle(t, 4, trace(event(dict{"size": "x"}))), "size: a str where a whole number should be"},
		"negative size":       {asPickle(t, 4, trace(event(dict{"size": -5}))), "size -5 is out of range"},
		"frames no list":      {asPickle(t, 4, trace(event(dict{"frames": 3}))), "frames: an int where a list should be"},
		"address too wide":    {asPickle(t, 4, trace(event(dict{"addr": int64(-1)}))), "is no address"},
		"blocks overlap":      {asPickle(t, 4, segment(block(4096, 1024, "inactive"), block(4608, 512, "inactive"))), "do not fit"},
		"block outside":       {asPickle(t, 4, segment(block(8192, 512, "inactive"))), "do not fit"},
		"block in no state":   {asPickle(t, 4, segment(block(4096, 512, "gone"))), "unknown state"},
		"too deep":            {asPickle(t, 4, deep), "nested more than 64 deep"},
		"many containers":     {[]byte("\x80\x04(" + strings.Repeat("}", 1<<16) + "t."), "more lists and dicts"},
		"JSON cut short":      {[]byte(`{"segments": [`), "unexpected end"},
		"JSON of other kind":  {[]byte(`{"a": 1}`), "neither segments nor device_traces"},
		"JSON address a text": {[]byte(`{"device_traces": [[{"action": "alloc", "addr": "x", "size": 1}]]}`), "JSON: offset 63: addr: a str where a whole number should be"},
		"broken gzip":         {[]byte{0x1f, 0x8b, 8, 0}, "unexpected EOF"},
		"a gzip bomb":         {zipped(t, make([]byte, 8<<20)), "grows more than 64 times"},
		"another Arrow file":  {append([]byte{0xff, 0xff, 0xff, 0xff}, make([]byte, 60)...), "not of a memory trace"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(c.data)
			require.ErrorContains(t, err, c.want)
			require.True(t, strings.HasPrefix(err.Error(), "snapshot: "), err)
			require.NotContains(t, err.Error(), "\n")
			require.Less(t, len(err.Error()), 300)
			require.Equal(t, int(exit.Input), exit.Code(err))
		})
	}
}

// The forms that a snapshot may have are read alike.
func TestFormsOfASnapshot(t *testing.T) {
	frames := []any{dict{"name": "f", "filename": "a.py", "line": 3}}
	free := dict{"action": "free_completed", "addr": 512, "size": 700, "stream": 0}
	v := trace(dict{"action": "alloc", "addr": 512, "size": 700, "stream": 0, "frames": frames}, free, dict{"action": "snapshot", "addr": 0, "size": 0, "stream": 0})
	for _, data := range [][]byte{asPickle(t, 2, v), asPickle(t, 4, v), zipped(t, asPickle(t, 4, v)), []byte(`{"other": [1], "segments": [], "device_traces": [[
		{"action": "alloc", "addr": 512, "size": 700, "frames": [{"name": "f", "filename": "a.py", "line": 3}]}, {"action": "free", "addr": 512}, {"action": "snapshot"}]]}`)} {
		s, err := Parse(data)
		require.NoError(t, err)
		r := Analyze(s, &s.Devices[0])
		require.Equal(t, alloc.Counts{Requested: 700, Allocated: 1024, Active: 1024}, r.Peak)
		require.Equal(t, "f (a.py:3)", r.Holders[0].Owner)
		require.Equal(t, Full, r.History)
	}
}

// Snapshots of old: a bare list of segments, blocks without addresses, their requests in a history.
func TestOldSegments(t *testing.T) {
	old := []any{dict{"device": 1, "address": 4096, "total_size": 2 << 20, "stream": 0, "blocks": []any{
		dict{"size": 1024, "state": "active_allocated", "history": []any{dict{"addr": 4096, "real_size": 700, "frames": []any{}}}},
		dict{"size": 512, "state": "active_awaiting_free"},
	}}}
	s, err := Parse(asPickle(t, 2, old))
	require.NoError(t, err)
	d, err := s.Device(-1)
	require.NoError(t, err)
	r := Analyze(s, d)
	require.Equal(t, alloc.Counts{Requested: 700 + 512, Allocated: 1024, Active: 1536, Reserved: 2 << 20, Pending: 512}, r.End)
	require.Equal(t, None, r.History)
	require.Equal(t, 1, r.Device)
}

func FuzzParse(f *testing.F) {
	free := dict{"action": "free_completed", "addr": 512, "size": 700, "stream": 0}
	f.Add(asPickle(f, 4, trace(dict{"action": "segment_alloc", "addr": 512, "size": 2 << 20, "stream": 0}, dict{"action": "alloc", "addr": 512, "size": 700, "stream": 0}, free)))
	f.Add(asPickle(f, 2, dict{"device_traces": []any{[]any{free}}, "segments": []any{dict{"device": 0, "address": 512, "total_size": 4096, "stream": 0,
		"is_expandable": true, "blocks": []any{dict{"address": 512, "size": 512, "requested_size": 9, "state": "active_pending_free"}}}}}))
	f.Add([]byte(`{"segments": [{"device": 0, "address": 512, "total_size": 512, "blocks": [{"size": 512, "state": "inactive"}]}], "device_traces": [[{"action": "free", "addr": 512, "size": 5}]]}`))
	var b bytes.Buffer
	w, err := NewWriter(&b, 0, alloc.Config{})
	require.NoError(f, err)
	w.Event(alloc.Event{Action: alloc.SegmentAlloc, Addr: 512, Size: 2 << 20})
	w.Event(alloc.Event{Action: alloc.Alloc, Addr: 512, Size: 700, Owner: "layers.0"})
	require.NoError(f, w.Close())
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse(data)
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		for i := range s.Devices {
			d := &s.Devices[i]
			r := Analyze(s, d)
			for _, c := range []alloc.Counts{r.Peak, r.AtPeakActive, r.End} {
				require.GreaterOrEqual(t, min(c.Requested, c.Allocated, c.Active, c.Pending), int64(0))
			}
			for _, p := range []Policy{Recorded, Hold, SameStream} {
				_, err := Replay{Policy: p, Config: s.Config, AsRecorded: p == Recorded, RunAhead: 2}.Run(s, d)
				require.NoError(t, err)
			}
		}
	})
}
