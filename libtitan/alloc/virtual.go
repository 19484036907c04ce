package alloc

import (
	"errors"
	"maps"
	"sync"
)

// ErrFull is what Virtual answers when its capacity is used up.
var ErrFull = errors.New("the virtual device is full")

// Virtual is a device of addresses without memory. Streams on it do nothing by themselves: [Virtual.Finish] says
// when their work is done.
type Virtual struct {
	Capacity int64                                    // bytes; 0 is no limit
	Space    int64                                    // bytes reserved for an expandable segment; 0 is 160 GiB
	Place    func(bytes int64) (addr uint64, ok bool) // where the next segment goes, if the caller knows; may be nil

	mu    sync.Mutex
	next  uint64
	used  int64
	queue map[Stream]int64 // marks recorded on each stream
	done  map[Stream]int64 // how many of them have passed
}

// base is where addresses start, far above what Place gives: recorded addresses of a GPU are below 2^47.
const base = 1 << 48

// Alloc gives the next free address.
func (v *Virtual) Alloc(bytes int64) (uint64, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.take(bytes); err != nil {
		return 0, err
	}
	if v.Place != nil {
		if addr, ok := v.Place(bytes); ok {
			return addr, nil
		}
	}
	return v.address(bytes), nil
}

func (v *Virtual) address(bytes int64) uint64 {
	addr := base + v.next
	v.next += uint64(bytes)
	return addr
}

func (v *Virtual) take(bytes int64) error {
	if v.Capacity > 0 && bytes > v.Capacity-v.used {
		return ErrFull
	}
	v.used += bytes
	return nil
}

// Free gives bytes back; the address is not used again.
func (v *Virtual) Free(_ uint64, bytes int64) error { return v.Unmap(0, bytes) }

// AddressSpace is Space.
func (v *Virtual) AddressSpace() int64 {
	if v.Space > 0 {
		return v.Space
	}
	return 160 << 30
}

// Reserve gives addresses.
func (v *Virtual) Reserve(bytes int64) (uint64, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.address(bytes), nil
}

// Map takes bytes.
func (v *Virtual) Map(_ uint64, bytes int64) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.take(bytes)
}

// Unmap gives bytes back.
func (v *Virtual) Unmap(_ uint64, bytes int64) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.used -= bytes
	return nil
}

// Record marks the present end of a stream.
func (v *Virtual) Record(s Stream) (Mark, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.queue == nil {
		v.queue, v.done = map[Stream]int64{}, map[Stream]int64{}
	}
	v.queue[s]++
	return &virtualMark{v, s, v.queue[s]}, nil
}

// Finish lets the oldest n marks of a stream that have not passed yet pass.
func (v *Virtual) Finish(s Stream, n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.done != nil {
		v.done[s] = min(v.done[s]+int64(n), v.queue[s])
	}
}

// FinishAll lets all marks pass.
func (v *Virtual) FinishAll() {
	v.mu.Lock()
	defer v.mu.Unlock()
	maps.Copy(v.done, v.queue)
}

type virtualMark struct {
	device *Virtual
	stream Stream
	number int64
}

func (m *virtualMark) Passed() (bool, error) {
	m.device.mu.Lock()
	defer m.device.mu.Unlock()
	return m.number <= m.device.done[m.stream], nil
}

// Wait finishes the stream's work up to the mark.
func (m *virtualMark) Wait() error {
	m.device.mu.Lock()
	defer m.device.mu.Unlock()
	m.device.done[m.stream] = max(m.device.done[m.stream], m.number)
	return nil
}

func (m *virtualMark) Release() {}
