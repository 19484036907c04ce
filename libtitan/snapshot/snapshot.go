// Package snapshot reads what an allocator recorded, PyTorch's CUDA memory snapshots and titan-run's own traces, and
// says where the memory went.
//
// A [Snapshot] is a trace of events a device and the segments that were there at its end. [Read] takes PyTorch's
// pickle, the same dict as JSON, or an Arrow stream that [Writer] wrote. [Analyze] works back from the end to what
// lived before the trace, plays the trace block by block ([ledger]), and reports the counters of
// torch.cuda.memory_stats, who held the bytes at their peak, and what was freed but could not be reused. [Replay]
// plays it through the allocator's twin under another policy.
//
// The format, and the arithmetic, are those of torch.cuda.memory._dump_snapshot in torch 2.11.
package snapshot

import (
	"cmp"
	"slices"

	"titan/libtitan/alloc"
	"titan/libtitan/exit"
)

// Snapshot is what one process recorded.
type Snapshot struct {
	Devices []Device
	Config  alloc.Config // the allocator's settings; its Policy is not recorded
	Owners  []Owner      // who asked for memory; Owners[0] is unknown
	Labels  []string     // categories; Labels[0] is none
	Planned bool         // values lie where a plan put them, in an arena: no allocator has a say

	pools []alloc.PoolID // private ones that events name
}

// Device is the part of one device.
type Device struct {
	Index    int
	Trace    []Event   // oldest first
	Segments []Segment // at the end, by address
}

// Event is an alloc.Event with its owner as a number.
type Event struct {
	Addr     uint64
	Size     int64 // bytes: requested, of a block's events
	Stream   alloc.Stream
	Other    alloc.Stream // of Use and Wait
	Time     int64        // microseconds of Unix time, 0 if unknown
	Owner    int32        // index of Snapshot.Owners
	Category int32        // index of Snapshot.Labels
	Action   alloc.Action
	Pool     int16 // index of the private pool plus 1, where the event names one
}

// Segment is a range that was taken from the device.
type Segment struct {
	Addr       uint64
	Size       int64
	Stream     alloc.Stream
	Small      bool
	Pool       alloc.PoolID
	Expandable bool
	Blocks     []Block // in order of address, tiling it
}

// Block is a part of a segment.
type Block struct {
	Addr      uint64
	Size      int64
	Requested int64 // of no meaning when inactive
	State     alloc.BlockState
	Owner     int32
}

// sizing says how a block comes out of free space.
type sizing interface {
	Round(requested int64) int64
	Splits(free, size int64) bool
}

func (s *Snapshot) sizing() sizing {
	if s.Planned {
		return planned{}
	}
	return &s.Config
}

// planned is a planner's: blocks begin at multiples of plan's granule and take no more than that.
type planned struct{}

func (planned) Round(requested int64) int64  { return (requested + 63) / 64 * 64 }
func (planned) Splits(free, size int64) bool { return free > size }

// maxBytes bounds any one size in a file, so that sums of millions stay far from overflow.
const maxBytes = 1 << 40

// Device finds a device by its index, or with a negative one the device with the longest trace.
func (s *Snapshot) Device(index int) (*Device, error) {
	best := -1
	for i := range s.Devices {
		d := &s.Devices[i]
		if d.Index == index {
			return d, nil
		}
		if best < 0 || busier(d, &s.Devices[best]) {
			best = i
		}
	}
	switch {
	case index >= 0:
		return nil, exit.Usage.Errorf("snapshot: no device %d: the file knows %d of them", index, len(s.Devices))
	case best < 0:
		return &Device{}, nil
	}
	return &s.Devices[best], nil
}

// busier prefers a trace with more events of blocks, then more reserved bytes.
func busier(a, b *Device) bool {
	if x, y := blockEvents(a.Trace), blockEvents(b.Trace); x != y {
		return x > y
	}
	return reserved(a.Segments) > reserved(b.Segments)
}

func blockEvents(trace []Event) (n int) {
	for i := range trace {
		if trace[i].Action != alloc.Ignored {
			n++
		}
	}
	return n
}

// segmentAt is the segment that holds addr, nil if there is none.
func segmentAt(segments []Segment, addr uint64) *Segment {
	at, exact := slices.BinarySearchFunc(segments, addr, func(s Segment, addr uint64) int { return cmp.Compare(s.Addr, addr) })
	if !exact {
		at--
	}
	if at < 0 || addr >= segments[at].Addr+uint64(segments[at].Size) {
		return nil
	}
	return &segments[at]
}

func reserved(segments []Segment) (bytes int64) {
	for i := range segments {
		bytes += segments[i].Size
	}
	return bytes
}
