package pickle

import "math/bits"

// bitset is a growing set of small numbers.
type bitset []uint64

func (b *bitset) set(i int) {
	for i/64 >= len(*b) {
		*b = append(*b, make([]uint64, 1+len(*b)/2)...)
	}
	(*b)[i/64] |= 1 << (i % 64)
}

func (b bitset) has(i int) bool { return i/64 < len(b) && b[i/64]>>(i%64)&1 != 0 }

// memo keeps values for the slots that the program reads, packed: slot i lives at the number of read slots below i.
type memo struct {
	read   bitset
	below  []uint32 // read slots before each word of read
	values []any
	filled bitset // by packed index

	written bitset // all slots that were written, read or not
	count   int    // how many: MEMOIZE writes the slot of this number
}

func newMemo(read bitset) memo {
	m := memo{read: read, below: make([]uint32, len(read))}
	n := 0
	for i, word := range read {
		m.below[i] = uint32(n)
		n += bits.OnesCount64(word)
	}
	m.values = make([]any, n)
	return m
}

func (m *memo) packed(slot int) int {
	word := m.read[slot/64] & (1<<(slot%64) - 1)
	return int(m.below[slot/64]) + bits.OnesCount64(word)
}

func (m *memo) store(slot int, v any) {
	if !m.written.has(slot) {
		m.written.set(slot)
		m.count++
	}
	if m.read.has(slot) {
		i := m.packed(slot)
		m.values[i] = v
		m.filled.set(i)
	}
}

func (m *memo) load(slot int) (any, bool) {
	i := m.packed(slot)
	return m.values[i], m.filled.has(i)
}
