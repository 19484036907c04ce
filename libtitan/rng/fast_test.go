package rng

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a machine's own kernels make is what the portable loops make, which slices too short for the kernels take.
func TestKernelsHaveTheBitsOfTheLoops(t *testing.T) {
	const blocks = 8 * 40
	for _, first := range []uint64{0, 1<<32 - 5, 1<<62 + 3} { // the counter's low half runs over
		s := newStream(0xfedcba9876543210, "w")
		got, want := make([]uint32, 4*blocks), make([]uint32, 4*blocks)
		s.words(got, first)
		for i := range uint64(blocks) {
			s.words(want[4*i:4*i+4], first+i)
		}
		require.Equal(t, want, got)
	}

	words := []uint32{0, 1, 2, 0x7fffffff, 0x80000000, 0x80000001, 0xffffffff, 0x40000000, 0x3fffffff, 0xbfffffff}
	r := rand.New(rand.NewPCG(1, 2))
	for range 1 << 20 {
		words = append(words, r.Uint32()>>r.IntN(32)|r.Uint32()&0x80000000)
	}
	tail := upperTail(1.5)
	for _, d := range []sampler{
		{scale: 1, std: 0.02, cut: math.MaxFloat32},
		{scale: 1 - 2*tail, shift: tail * 0x1p33, std: 2, cut: 3},
	} {
		got, want := make([]float32, len(words)), make([]float32, len(words))
		d.values(got, words)
		for i := range words {
			d.values(want[i:i+1], words[i:i+1])
		}
		require.Equal(t, want, got)
	}
}
