package snapshot

import (
	"errors"
	"fmt"
	"math/big"

	"titan/libtitan/alloc"
	"titan/libtitan/pickle"
)

// plain are the opcodes of a pickle of plain values: none can name code.
var plain = pickle.Ops("PROTO FRAME MARK STOP NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT SHORT_BINUNICODE BINUNICODE " +
	"BINUNICODE8 EMPTY_DICT EMPTY_LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 SETITEM SETITEMS APPEND APPENDS BINGET LONG_BINGET MEMOIZE BINPUT LONG_BINPUT")

// pickled reads the dict that torch.cuda.memory._dump_snapshot pickles. Events become [Event] as soon as their dicts
// are full, so that millions of them cost no more than their bytes.
type pickled struct {
	*builder
	events []Event
	next   int // the first of events that no device has taken yet
	stacks map[*pickle.List]int32
	lines  map[*pickle.Dict]int32
	ids    []int32
}

// taken stands in a list for an event that is in pickled.events.
type taken struct{}

// maxKept bounds the caches by identity, which keep what they know alive.
const maxKept = 1 << 16

func readPickle(data string) (*Snapshot, error) {
	p := &pickled{builder: newBuilder(), stacks: map[*pickle.List]int32{}, lines: map[*pickle.Dict]int32{}}
	v, err := pickle.Decode(data, pickle.Options{Opcodes: plain, Filled: p.filled})
	if err != nil {
		return nil, err
	}
	if segments, ok := v.(*pickle.List); ok { // torch.cuda.memory_snapshot() of old
		v = &pickle.Dict{Pairs: []pickle.Pair{{Key: "segments", Value: segments}}}
	}
	top, ok := v.(*pickle.Dict)
	if !ok {
		return nil, errors.New("the file holds no dict: it is no memory snapshot")
	}
	if err := p.top(top); err != nil {
		return nil, err
	}
	return p.finish()
}

// filled takes an event out of its dict, and leaves other dicts alone.
func (p *pickled) filled(d *pickle.Dict) (any, error) {
	if _, ok := d.Get("action"); !ok {
		return d, nil
	}
	e, err := p.readEvent(d)
	if err != nil {
		return nil, err
	}
	p.events = append(p.events, e)
	return taken{}, nil
}

func (p *pickled) top(d *pickle.Dict) error {
	known := 0
	for _, f := range []struct {
		key  string
		read func(v any) error
	}{{"external_annotations", p.readScopes}, {"allocator_settings", p.readSettings}, {"segments", p.readSegments}, {"device_traces", p.readTraces}} {
		v, ok := d.Get(f.key)
		if !ok {
			continue
		}
		known++
		if err := f.read(v); err != nil {
			return fmt.Errorf("%s: %w", f.key, err)
		}
	}
	if _, ok := d.Get("segments"); !ok && known == 0 {
		return errors.New("neither segments nor device_traces: it is no memory snapshot")
	}
	return nil
}

func (p *pickled) readTraces(v any) error {
	devices, err := items(v)
	if err != nil {
		return err
	}
	for i, v := range devices {
		list, err := items(v)
		if err != nil {
			return fmt.Errorf("device %d: %w", i, err)
		}
		first, events := p.next, []Event(nil)
		for k, v := range list {
			if _, ok := v.(taken); ok && p.next < len(p.events) {
				p.next++
				continue
			}
			e, err := p.readEvent(v)
			if err != nil {
				return fmt.Errorf("device %d: event %d: %w", i, k, err)
			}
			if events == nil { // a dict that was filled key by key
				events = append(events, p.events[first:p.next]...)
			}
			events = append(events, e)
		}
		if events == nil {
			events = p.events[first:p.next:p.next]
		}
		p.trace(events)
	}
	return nil
}

func (p *pickled) readEvent(v any) (Event, error) {
	r := rawEvent{addr: absent, size: absent}
	err := fields(v, func(key string, v any) (err error) {
		switch key {
		case "action":
			r.action, err = text(v)
		case "addr":
			r.addr, err = number(v)
		case "size":
			r.size, err = number(v)
		case "stream":
			r.stream, err = number(v)
		case "time_us":
			r.time, err = number(v)
		case "frames":
			r.owner, err = p.stack(v)
		case "category":
			r.category, err = text(v)
		case "user_metadata":
			r.metadata, err = text(v)
		case "pool_id":
			r.pool, err = poolID(v)
			r.pooled = true
		}
		return err
	})
	if err != nil {
		return Event{}, err
	}
	return p.event(&r)
}

// stack is the owner of a list of frames. Lists and frames are shared, so most are known by identity.
func (p *pickled) stack(v any) (int32, error) {
	list, ok := v.(*pickle.List)
	if !ok {
		return 0, errors.New("frames are no list")
	}
	if at, ok := p.stacks[list]; ok {
		return at, nil
	}
	p.ids = p.ids[:0]
	for _, v := range list.Items {
		at, err := p.line(v)
		if err != nil {
			return 0, err
		}
		p.ids = append(p.ids, at)
	}
	at := p.owner(p.ids)
	if len(p.stacks) == maxKept {
		clear(p.stacks)
	}
	p.stacks[list] = at
	return at, nil
}

func (p *pickled) line(v any) (int32, error) {
	d, ok := v.(*pickle.Dict)
	if ok {
		if at, ok := p.lines[d]; ok {
			return at, nil
		}
	}
	var f Frame
	var number64 int64
	err := fields(v, func(key string, v any) (err error) {
		switch key {
		case "name":
			f.Name, err = text(v)
		case "filename":
			f.File, err = text(v)
		case "line":
			number64, err = number(v)
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	f.Line = int(number64)
	at := p.frame(f)
	if len(p.lines) == maxKept {
		clear(p.lines)
	}
	p.lines[d] = at
	return at, nil
}

func (p *pickled) readSegments(v any) error {
	list, err := items(v)
	if err != nil {
		return err
	}
	for i, v := range list {
		r := rawSegment{}
		err := fields(v, func(key string, v any) (err error) {
			switch key {
			case "device":
				r.device, err = number(v)
			case "address":
				r.addr, err = number(v)
			case "total_size":
				r.size, err = number(v)
			case "stream":
				r.stream, err = number(v)
			case "segment_type":
				r.kind, err = text(v)
			case "segment_pool_id":
				r.pool, err = poolID(v)
			case "is_expandable":
				r.expandable = v == true
			case "blocks":
				r.blocks, err = p.readBlocks(v)
			}
			return err
		})
		if err == nil {
			err = p.segment(&r)
		}
		if err != nil {
			return fmt.Errorf("segment %d: %w", i, err)
		}
	}
	return nil
}

func (p *pickled) readBlocks(v any) ([]rawBlock, error) {
	list, err := items(v)
	if err != nil {
		return nil, err
	}
	blocks := make([]rawBlock, len(list))
	for i, v := range list {
		r := rawBlock{addr: absent, requested: absent}
		err := fields(v, func(key string, v any) (err error) {
			switch key {
			case "address":
				r.addr, err = number(v)
			case "size":
				r.size, err = number(v)
			case "requested_size":
				r.requested, err = number(v)
			case "state":
				r.state, err = text(v)
			case "frames":
				r.owner, err = p.stack(v)
			case "history": // of very old snapshots
				err = p.readHistory(v, &r)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("block %d: %w", i, err)
		}
		blocks[i] = r
	}
	return blocks, nil
}

func (p *pickled) readHistory(v any, r *rawBlock) error {
	list, err := items(v)
	if err != nil || len(list) == 0 {
		return err
	}
	return fields(list[0], func(key string, v any) (err error) {
		switch key {
		case "real_size":
			r.requested, err = number(v)
		case "frames":
			r.owner, err = p.stack(v)
		}
		return err
	})
}

func (p *pickled) readScopes(v any) error {
	list, err := items(v)
	if err != nil {
		return err
	}
	for _, v := range list {
		var s rawScope
		err := fields(v, func(key string, v any) (err error) {
			switch key {
			case "name":
				s.name, err = text(v)
			case "stage":
				s.stage, err = text(v)
			case "device":
				s.device, err = number(v)
			case "time_us":
				s.time, err = number(v)
			}
			return err
		})
		if err != nil {
			return err
		}
		p.scopes = append(p.scopes, s)
	}
	return nil
}

func (p *pickled) readSettings(v any) error {
	return fields(v, func(key string, v any) (err error) {
		switch key {
		case "max_split_size":
			p.config.MaxSplitSize, err = number(v)
		case "expandable_segments":
			p.config.Expandable = v == true
		case "roundup_power2_divisions":
			err = fields(v, func(key string, v any) error {
				n, err := number(v)
				setDivisions(&p.config, key, n)
				return err
			})
		}
		return err
	})
}

// fields calls f for every key of a dict; other values than dicts are an error.
func fields(v any, f func(key string, v any) error) error {
	d, ok := v.(*pickle.Dict)
	if !ok {
		return errors.New("a value that should be a dict")
	}
	for _, p := range d.Pairs {
		key, ok := p.Key.(string)
		if !ok {
			return errors.New("a key that is no string")
		}
		if err := f(key, p.Value); err != nil {
			return err
		}
	}
	return nil
}

func items(v any) ([]any, error) {
	switch v := v.(type) {
	case *pickle.List:
		return v.Items, nil
	case pickle.Tuple:
		return v, nil
	}
	return nil, errors.New("a value that should be a list")
}

func text(v any) (string, error) {
	s, ok := v.(string)
	if !ok && v != nil {
		return "", errors.New("a value that should be a string")
	}
	return s, nil
}

func number(v any) (int64, error) {
	switch v := v.(type) {
	case int64:
		return v, nil
	case *big.Int:
		return 0, fmt.Errorf("the number %.30s is out of range", v.String())
	}
	return 0, errors.New("a value that should be a whole number")
}

func poolID(v any) (id alloc.PoolID, err error) {
	pair, err := items(v)
	if err != nil || len(pair) != len(id) {
		return id, errors.New("a pool id that is no pair")
	}
	for i := range id {
		if id[i], err = number(pair[i]); err != nil {
			return id, err
		}
	}
	return id, nil
}
