package alloc

import (
	"math"
	"math/bits"
)

// The allocator's constants, from c10/cuda/CUDACachingAllocator.h.
const (
	MinBlock     = 512      // bytes; every block is a multiple of it
	SmallRequest = 1 << 20  // at most this is a small request
	SmallSegment = 2 << 20  // what small requests are cut from
	LargeSegment = 20 << 20 // what requests below midRequest are cut from
	midRequest   = 10 << 20
	roundLarge   = 2 << 20  // larger segments are multiples of it
	maxSlack     = 20 << 20 // PyTorch's max_non_split_rounding_mb
	MaxRequest   = 1 << 50  // far above any device's memory, far below overflow
)

// Config holds the settings of PYTORCH_CUDA_ALLOC_CONF that shape blocks and segments.
type Config struct {
	Policy       Policy
	MaxSplitSize int64   // bytes: a block of this size or more is not split; 0 is no limit
	Expandable   bool    // expandable_segments
	Divisions    [16]int // roundup_power2_divisions, for sizes from 1 MiB, 2 MiB, 4 MiB, ... on
}

// Round is the size of the block that a request of bytes needs.
func (c *Config) Round(bytes int64) int64 {
	if bytes < MinBlock {
		return MinBlock
	}
	if d := int64(c.divisions(bytes)); d > 1 && bytes > MinBlock*d {
		return roundPower2(bytes, d)
	}
	return roundUp(bytes, MinBlock)
}

// divisions is the setting of the power of two that bytes lies in.
func (c *Config) divisions(bytes int64) int {
	at := bits.Len64(uint64(bytes)) - bits.Len64(1<<20)
	return c.Divisions[min(max(at, 0), len(c.Divisions)-1)]
}

// roundPower2 rounds up to one of d equal steps from one power of two to the next.
func roundPower2(bytes, d int64) int64 {
	floor := int64(1) << (bits.Len64(uint64(bytes)) - 1)
	step := floor >> (bits.Len64(uint64(d)) - 1)
	if step == 0 {
		return floor << 1
	}
	return roundUp(bytes, step)
}

func roundUp(bytes, to int64) int64 { return (bytes + to - 1) / to * to }

// segmentSize is what is taken from the device for a block of size.
func segmentSize(size int64) int64 {
	switch {
	case size <= SmallRequest:
		return SmallSegment
	case size < midRequest:
		return LargeSegment
	}
	return roundUp(size, roundLarge)
}

// Splits reports whether the rest of a free block is cut off when size of it is handed out.
func (c *Config) Splits(free, size int64) bool {
	if size <= SmallRequest || c.Expandable {
		return free-size >= MinBlock
	}
	return size < c.maxSplit() && free-size > SmallRequest
}

func (c *Config) maxSplit() int64 {
	if c.MaxSplitSize <= 0 {
		return math.MaxInt64
	}
	return c.MaxSplitSize
}
