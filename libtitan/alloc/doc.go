// Package alloc is PyTorch's caching allocator, as its documentation and its memory snapshots describe it, over any
// [Device]: a GPU, or [Virtual], which hands out addresses without memory and so is memprof's twin of a real run.
//
// [New] makes an [Allocator]. It rounds a request ([Config.Round]), looks for the smallest cached block of the
// request's pool that fits, and only then takes a segment from the device. A pool is a stream and a size class:
// memory freed on one stream is never handed to another. A block that other streams use ([Allocator.Use]) is the
// subject of the three policies: RecordStream keeps it from reuse until an event on each of those streams has
// passed, Hold keeps it allocated until its own stream has waited for them ([Allocator.Wait]), SameStream runs all
// on one stream and reuses at once.
//
// Everything that happens comes out as an [Event] and moves the counters of torch.cuda.memory_stats ([Meter]).
package alloc

// Stream is a stream's handle as a number; 0 is the default stream.
type Stream uint64

// PoolID names a private pool, such as a CUDA graph's; the zero value is the default pool.
type PoolID [2]int64

// Device is where segments come from.
type Device interface {
	// Alloc gives a range of bytes, a multiple of 2 MiB, or an error if there is no room.
	Alloc(bytes int64) (addr uint64, err error)
	Free(addr uint64, bytes int64) error
	// Record marks the work that is queued on s now.
	Record(s Stream) (Mark, error)
}

// Mark is a point in a stream's queue of work.
type Mark interface {
	Passed() (bool, error)
	Wait() error // until it has passed
	Release()    // called once, after it has passed
}

// Mapper is a Device with virtual memory, as expandable segments need it.
type Mapper interface {
	Device
	Reserve(bytes int64) (addr uint64, err error) // addresses alone, bytes of them
	Map(addr uint64, bytes int64) error           // memory behind a part of them, in whole pages
	Unmap(addr uint64, bytes int64) error
	AddressSpace() int64 // how much to reserve for a pool: PyTorch takes 9/8 of the device's memory
}
