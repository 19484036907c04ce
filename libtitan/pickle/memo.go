package pickle

import (
	"fmt"
	"math/bits"
)

// bitset is a growing set of small numbers.
type bitset []uint64

func (b *bitset) set(i int) {
	for i/64 >= len(*b) {
		*b = append(*b, make([]uint64, 1+len(*b)/2)...)
	}
	(*b)[i/64] |= 1 << (i % 64)
}

func (b bitset) has(i int) bool { return i/64 < len(b) && b[i/64]>>(i%64)&1 != 0 }

// Memo keeps a machine's values for the slots that its program reads, packed: slot i lives at the number of read
// slots below i.
type Memo[T any] struct {
	reads  bitset
	below  []uint32 // read slots before each word of reads
	values []T
	filled bitset // by packed index

	// Which slots were written, read or not: all below dense, and those of beyond. MEMOIZE writes the slot of their number.
	dense  int
	beyond map[int]bool
}

// NewMemo makes an empty memo for p.
func NewMemo[T any](p *Program) *Memo[T] {
	m := &Memo[T]{beyond: map[int]bool{}, reads: p.reads, below: make([]uint32, len(p.reads))}
	n := 0
	for i, word := range p.reads {
		m.below[i] = uint32(n)
		n += bits.OnesCount64(word)
	}
	m.values = make([]T, n)
	return m
}

func (m *Memo[T]) packed(slot int) int {
	word := m.reads[slot/64] & (1<<(slot%64) - 1)
	return int(m.below[slot/64]) + bits.OnesCount64(word)
}

// Put writes a slot, as BINPUT does; it reports whether the slot is ever read.
func (m *Memo[T]) Put(slot int, v T) (read bool) {
	switch {
	case slot == m.dense:
		for m.dense++; m.beyond[m.dense]; m.dense++ {
			delete(m.beyond, m.dense)
		}
	case slot > m.dense:
		m.beyond[slot] = true
	}
	if !m.reads.has(slot) {
		return false
	}
	i := m.packed(slot)
	m.values[i] = v
	m.filled.set(i)
	return true
}

// Next is the slot that MEMOIZE writes next.
func (m *Memo[T]) Next() int { return m.dense + len(m.beyond) }

// Reads reports whether the program reads a slot somewhere.
func (m *Memo[T]) Reads(slot int) bool { return m.reads.has(slot) }

// Add writes the next slot, as MEMOIZE does.
func (m *Memo[T]) Add(v T) (read bool) { return m.Put(m.Next(), v) }

// Get reads a slot, as BINGET does.
func (m *Memo[T]) Get(slot int) (v T, err error) {
	i := m.packed(slot)
	if !m.filled.has(i) {
		return v, fmt.Errorf("memo slot %d is empty", slot)
	}
	return m.values[i], nil
}
