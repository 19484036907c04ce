package snapshot

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"titan/libtitan/alloc"
)

// readJSON reads the snapshot's dict written as JSON, one value after the other.
func readJSON(data []byte) (*Snapshot, error) {
	j := &jsonReader{builder: newBuilder(), d: json.NewDecoder(bytes.NewReader(data)), stacks: map[string]int32{}}
	if err := j.top(); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return j.finish()
}

type jsonReader struct {
	*builder
	d      *json.Decoder
	stacks map[string]int32 // by their text
}

func (j *jsonReader) top() error {
	first, err := j.d.Token()
	if err != nil {
		return err
	}
	if first == json.Delim('[') { // torch.cuda.memory_snapshot() of old
		return j.rest(j.readSegment)
	}
	known := 0
	for j.d.More() {
		key, err := j.d.Token()
		if err != nil {
			return err
		}
		read, ok := map[any]func() error{
			"segments":             func() error { return j.list(j.readSegment) },
			"device_traces":        func() error { return j.list(j.readTrace) },
			"allocator_settings":   j.readSettings,
			"external_annotations": func() error { return j.list(j.readScope) },
		}[key]
		if !ok {
			var skipped json.RawMessage
			read = func() error { return j.d.Decode(&skipped) }
		} else {
			known++
		}
		if err := read(); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	if known == 0 {
		return errors.New("neither segments nor device_traces: it is no memory snapshot")
	}
	_, err = j.d.Token()
	return err
}

// list calls read for each element of a list.
func (j *jsonReader) list(read func() error) error {
	open, err := j.d.Token()
	if err != nil {
		return err
	}
	if open != json.Delim('[') {
		return errors.New("a value that should be a list")
	}
	return j.rest(read)
}

func (j *jsonReader) rest(read func() error) error {
	for i := 0; j.d.More(); i++ {
		if err := read(); err != nil {
			return fmt.Errorf("element %d: %w", i, err)
		}
	}
	_, err := j.d.Token()
	return err
}

type jsonFrame struct {
	Name     string `json:"name"`
	Filename string `json:"filename"`
	Line     int    `json:"line"`
}

// frames is a list of frames, kept as text: equal ones are parsed once.
type frames = json.RawMessage

// maxStacks bounds the texts that are kept.
const maxStacks = 1 << 16

func (j *jsonReader) stack(text frames) (int32, error) {
	if at, ok := j.stacks[string(text)]; ok || len(text) == 0 {
		return at, nil
	}
	var list []jsonFrame
	if err := json.Unmarshal(text, &list); err != nil {
		return 0, err
	}
	ids := make([]int32, len(list))
	for i, f := range list {
		ids[i] = j.frame(Frame{f.Name, f.Filename, f.Line})
	}
	at := j.owner(ids)
	if len(j.stacks) == maxStacks {
		clear(j.stacks)
	}
	j.stacks[string(text)] = at
	return at, nil
}

type jsonEvent struct {
	Action       string        `json:"action"`
	Addr         int64         `json:"addr"`
	Size         int64         `json:"size"`
	Stream       int64         `json:"stream"`
	TimeUS       int64         `json:"time_us"`
	Frames       frames        `json:"frames"`
	Category     string        `json:"category"`
	UserMetadata string        `json:"user_metadata"`
	PoolID       *alloc.PoolID `json:"pool_id"`
}

func (j *jsonReader) readTrace() error {
	var events []Event
	var e jsonEvent
	err := j.list(func() error {
		e = jsonEvent{Addr: absent, Size: absent, Frames: e.Frames[:0]}
		if err := j.d.Decode(&e); err != nil {
			return err
		}
		r := rawEvent{action: e.Action, addr: e.Addr, size: e.Size, stream: e.Stream, time: e.TimeUS, category: e.Category, metadata: e.UserMetadata}
		if e.PoolID != nil {
			r.pool, r.pooled = *e.PoolID, true
		}
		var err error
		if r.owner, err = j.stack(e.Frames); err != nil {
			return err
		}
		event, err := j.event(&r)
		events = append(events, event)
		return err
	})
	j.trace(events)
	return err
}

type jsonSegment struct {
	Device      int64        `json:"device"`
	Address     int64        `json:"address"`
	TotalSize   int64        `json:"total_size"`
	Stream      int64        `json:"stream"`
	SegmentType string       `json:"segment_type"`
	PoolID      alloc.PoolID `json:"segment_pool_id"`
	Expandable  bool         `json:"is_expandable"`
	Blocks      []jsonBlock  `json:"blocks"`
}

type jsonBlock struct {
	Address   *int64 `json:"address"`
	Size      int64  `json:"size"`
	Requested *int64 `json:"requested_size"`
	State     string `json:"state"`
	Frames    frames `json:"frames"`
}

func (j *jsonReader) readSegment() error {
	var s jsonSegment
	if err := j.d.Decode(&s); err != nil {
		return err
	}
	r := rawSegment{s.Device, s.Address, s.TotalSize, s.Stream, s.SegmentType, s.PoolID, s.Expandable, make([]rawBlock, len(s.Blocks))}
	for i, b := range s.Blocks {
		owner, err := j.stack(b.Frames)
		if err != nil {
			return err
		}
		r.blocks[i] = rawBlock{absent, b.Size, absent, b.State, owner}
		if b.Address != nil {
			r.blocks[i].addr = *b.Address
		}
		if b.Requested != nil {
			r.blocks[i].requested = *b.Requested
		}
	}
	return j.segment(&r)
}

func (j *jsonReader) readScope() error {
	var s struct {
		Name   string `json:"name"`
		Stage  string `json:"stage"`
		Device int64  `json:"device"`
		TimeUS int64  `json:"time_us"`
	}
	err := j.d.Decode(&s)
	j.scopes = append(j.scopes, rawScope{s.Name, s.Stage, s.Device, s.TimeUS})
	return err
}

func (j *jsonReader) readSettings() error {
	var s struct {
		MaxSplitSize int64            `json:"max_split_size"`
		Expandable   bool             `json:"expandable_segments"`
		Divisions    map[string]int64 `json:"roundup_power2_divisions"`
	}
	err := j.d.Decode(&s)
	j.config.MaxSplitSize, j.config.Expandable = s.MaxSplitSize, s.Expandable
	for mib, n := range s.Divisions {
		setDivisions(&j.config, mib, n)
	}
	return err
}
