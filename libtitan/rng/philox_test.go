package rng

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The known answers of Random123 1.14, kat_vectors, for philox4x32 with 10 rounds.
func TestPhiloxKnownAnswers(t *testing.T) {
	for _, c := range []struct {
		counter [4]uint32
		key     [2]uint32
		want    [4]uint32
	}{
		{[4]uint32{}, [2]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{
			[4]uint32{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, [2]uint32{0xffffffff, 0xffffffff},
			[4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
		},
		{
			[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0},
			[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
		},
	} {
		var got [4]uint32
		got[0], got[1], got[2], got[3] = philox(c.counter[0], c.counter[1], c.counter[2], c.counter[3], c.key[0], c.key[1])
		require.Equal(t, c.want, got, "counter %x key %x", c.counter, c.key)
	}
}

func TestStreamsDiffer(t *testing.T) {
	first := func(seed uint64, fqn string) (w [4]uint32) {
		newStream(seed, fqn).words(w[:], 0)
		return w
	}
	base := first(42, "layers.1.attention.wq.weight")
	require.NotEqual(t, base, first(43, "layers.1.attention.wq.weight"))
	require.NotEqual(t, base, first(42|1<<40, "layers.1.attention.wq.weight"), "the high half of the seed counts")
	require.NotEqual(t, base, first(42, "layers.10.attention.wq.weight"))
}
