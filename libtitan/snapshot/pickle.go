package snapshot

import (
	"errors"
	"fmt"

	"titan/libtitan/pickle"
)

// pickled reads the dict that torch.cuda.memory._dump_snapshot pickles. An event is read as soon as its dict is full.
type pickled struct {
	*builder
	file
	events []Event
	next   int // the first of events that no device has taken yet
	ids    []int32
}

// bytesPerEvent is the least that torch writes for one; only speed depends on it, for memory is taken as it is filled.
const bytesPerEvent = 48

func newPickled(data string) *pickled {
	return &pickled{builder: newBuilder(), file: file{data: data}, events: make([]Event, 0, len(data)/bytesPerEvent)}
}

func readPickle(data string) (*Snapshot, error) {
	program, err := pickle.Check(data, &plain)
	if err != nil {
		return nil, err
	}
	p := newPickled(data)
	m := &machine{program: program, size: len(data), memo: pickle.NewMemo[value](program), dict: p.dict}
	v, err := m.run()
	if err != nil {
		return nil, err
	}
	return p.read(v)
}

// read makes a Snapshot of the value that the file holds.
func (p *pickled) read(v value) (s *Snapshot, err error) {
	switch v.kind {
	case listValue: // torch.cuda.memory_snapshot() of old
		err = p.readSegments(v)
	case dictValue:
		err = p.top(v.node)
	default:
		err = errors.New("the file holds no dict: it is no memory snapshot")
	}
	if err != nil {
		return nil, err
	}
	return p.finish()
}

// dict takes an event out of its dict, and notes which dicts are frames.
func (p *pickled) dict(d *node) (event bool, err error) {
	switch {
	case p.has(d, "action"):
		e, err := p.readEvent(d.items)
		p.events = append(p.events, e)
		return true, err
	case p.has(d, "name") && p.has(d, "filename"):
		d.number, err = p.line(d.items)
		d.number++
	}
	return false, err
}

func (p *pickled) top(d *node) error {
	known := 0
	for _, f := range []struct {
		key  string
		read func(v value) error
	}{{"external_annotations", p.readScopes}, {"allocator_settings", p.readSettings}, {"segments", p.readSegments}, {"device_traces", p.readTraces}} {
		v := p.get(d, f.key)
		if v == nil {
			continue
		}
		known++
		if err := f.read(*v); err != nil {
			return fmt.Errorf("%s: %w", f.key, err)
		}
	}
	if p.get(d, "segments") == nil && p.get(d, "device_traces") == nil {
		return errors.New("neither segments nor device_traces: it is no memory snapshot")
	}
	return nil
}

func (p *pickled) readTraces(v value) error {
	devices, err := items(v)
	if err != nil {
		return err
	}
	for i, v := range devices {
		list, err := items(v)
		if err != nil {
			return fmt.Errorf("device %d: %w", i, err)
		}
		if p.next+v.node.events > len(p.events) {
			return fmt.Errorf("device %d: a list that stands twice", i)
		}
		events := p.events[p.next : p.next+v.node.events : p.next+v.node.events]
		p.next += len(events)
		for _, v := range list { // what stood elsewhere first, or was filled key by key
			d, err := dictItems(v)
			if err != nil {
				return fmt.Errorf("device %d: event %d: %w", i, len(events), err)
			}
			e, err := p.readEvent(d)
			if err != nil {
				return fmt.Errorf("device %d: event %d: %w", i, len(events), err)
			}
			events = append(events, e)
		}
		p.trace(events)
	}
	return nil
}

func (p *pickled) readEvent(items []value) (Event, error) {
	r := rawEvent{addr: absent, size: absent}
	err := p.fields(items, func(key string, v value) (err error) {
		switch key {
		case "action":
			r.action, err = p.text(v)
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
			r.category, err = p.text(v)
		case "user_metadata":
			r.metadata, err = p.text(v)
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

// stack is the owner of a list of frames.
func (p *pickled) stack(v value) (int32, error) {
	list, err := items(v)
	if err != nil {
		return 0, fmt.Errorf("frames: %w", err)
	}
	if v.node.number > 0 {
		return v.node.number - 1, nil
	}
	p.ids = p.ids[:0]
	for _, v := range list {
		if v.node != nil && v.kind == dictValue && v.node.number > 0 {
			p.ids = append(p.ids, v.node.number-1)
			continue
		}
		d, err := dictItems(v)
		if err != nil {
			return 0, fmt.Errorf("frames: %w", err)
		}
		at, err := p.line(d)
		if err != nil {
			return 0, err
		}
		p.ids = append(p.ids, at)
	}
	at := p.owner(p.ids)
	if v.node.kept { // then its number is enough
		v.node.number, v.node.items = at+1, nil
	}
	return at, nil
}

func (p *pickled) line(items []value) (int32, error) {
	var f Frame
	err := p.fields(items, func(key string, v value) (err error) {
		switch key {
		case "name":
			f.Name, err = p.text(v)
		case "filename":
			f.File, err = p.text(v)
		case "line":
			var n int64
			n, err = number(v)
			f.Line = int(n)
		}
		return err
	})
	return p.frame(f), err
}

func (p *pickled) readSegments(v value) error {
	list, err := items(v)
	if err != nil {
		return err
	}
	for i, v := range list {
		r := rawSegment{}
		err := p.fieldsOf(v, func(key string, v value) (err error) {
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
				r.kind, err = p.text(v)
			case "segment_pool_id":
				r.pool, err = poolID(v)
			case "is_expandable":
				r.expandable = v.kind == boolValue && v.n == 1
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

func (p *pickled) readBlocks(v value) ([]rawBlock, error) {
	list, err := items(v)
	if err != nil {
		return nil, err
	}
	blocks := make([]rawBlock, len(list))
	for i, v := range list {
		r := rawBlock{addr: absent, requested: absent}
		err := p.fieldsOf(v, func(key string, v value) (err error) {
			switch key {
			case "address":
				r.addr, err = number(v)
			case "size":
				r.size, err = number(v)
			case "requested_size":
				r.requested, err = number(v)
			case "state":
				r.state, err = p.text(v)
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

func (p *pickled) readHistory(v value, r *rawBlock) error {
	list, err := items(v)
	if err != nil || len(list) == 0 {
		return err
	}
	return p.fieldsOf(list[0], func(key string, v value) (err error) {
		switch key {
		case "real_size":
			r.requested, err = number(v)
		case "frames":
			r.owner, err = p.stack(v)
		}
		return err
	})
}

func (p *pickled) readScopes(v value) error {
	list, err := items(v)
	if err != nil {
		return err
	}
	for _, v := range list {
		var s rawScope
		err := p.fieldsOf(v, func(key string, v value) (err error) {
			switch key {
			case "name":
				s.name, err = p.text(v)
			case "stage":
				s.stage, err = p.text(v)
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

func (p *pickled) readSettings(v value) error {
	return p.fieldsOf(v, func(key string, v value) (err error) {
		switch key {
		case "max_split_size":
			p.config.MaxSplitSize, err = number(v)
		case "expandable_segments":
			p.config.Expandable = v.kind == boolValue && v.n == 1
		case "roundup_power2_divisions":
			err = p.fieldsOf(v, func(key string, v value) error {
				n, err := number(v)
				setDivisions(&p.config, key, n)
				return err
			})
		}
		return err
	})
}
