// Package exec runs a plan. [Load] binds every step of a program to its kernel and its memory, once, and [LoadCUDA] does so
// on a GPU; [Runner.Run] then goes down the list.
package exec

import (
	"fmt"
	"unsafe"

	"titan/libtitan/dtype"
	"titan/libtitan/graph"
	"titan/libtitan/placement"
	"titan/libtitan/plan"
)

// Memory is what a program works on: the caller owns it and reads and writes it between runs.
type Memory struct {
	Params, Grads  map[string][]float32 // by FQN
	Tokens, Labels [][]int32            // by microbatch, [rows·seqLen]
	Scale          []float32            // one element
	Loss           []float32            // by microbatch
	arena, consts  []byte
}

// NewMemory makes the memory of prog for microbatches of size tokens. Parameters and gradients are the caller's.
func NewMemory(prog *plan.Program, microbatches, size int, params, grads map[string][]float32) *Memory {
	m := &Memory{Params: params, Grads: grads, Scale: make([]float32, 1), Loss: make([]float32, microbatches)}
	for range microbatches {
		m.Tokens = append(m.Tokens, make([]int32, size))
		m.Labels = append(m.Labels, make([]int32, size))
	}
	m.arena, m.consts = aligned(prog.ArenaBytes), aligned(prog.ConstBytes)
	return m
}

// aligned is n bytes that start at a multiple of 64.
func aligned(n int) []byte {
	b := make([]byte, n+63)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & 63
	return b[skip : skip+n]
}

// tensor is a value with its memory.
type tensor struct {
	graph.Type
	data    []byte
	at      []placement.Range // what of the logical value it is
	logical []int             // the logical value's shape
}

// whole reports whether the rank holds all of a dim.
func (t tensor) whole(dim int) bool { return t.at[dim].Len == t.logical[dim] }

// at finds the memory of a slot.
func (m *Memory) at(s *plan.Slot) (tensor, error) {
	t := tensor{Type: s.Type, at: s.At, logical: s.Logical}
	switch s.Class {
	case plan.Arena:
		t.data = m.arena[s.Root().Offset:][:s.Bytes()]
	case plan.Const:
		t.data = m.consts[s.Root().Offset:][:s.Bytes()]
	case plan.Param:
		t.data = bytesOf(m.Params[s.Name])
	case plan.Grad:
		t.data = bytesOf(m.Grads[s.Name])
	case plan.Tokens:
		t.data = bytesOf(m.Tokens[s.Microbatch])
	case plan.Labels:
		t.data = bytesOf(m.Labels[s.Microbatch])
	case plan.Scale:
		t.data = bytesOf(m.Scale)
	case plan.Loss:
		t.data = bytesOf(m.Loss[s.Microbatch : s.Microbatch+1])
	}
	if len(t.data) != s.Bytes() {
		return t, fmt.Errorf("exec: %v %s%s: %d bytes of memory for %v", s.Class, s.Name, s.FQN, len(t.data), s.Type)
	}
	return t, nil
}

// scratch is a step's working memory, given out from its start.
type scratch struct{ free []byte }

func newScratch(s *plan.Step, mem *Memory) *scratch {
	if s.Scratch == nil {
		return &scratch{}
	}
	return &scratch{mem.arena[s.Scratch.Offset:][:s.Scratch.Bytes()]}
}

// take gives n bytes, at a multiple of the arena's granule.
func (s *scratch) take(n int) []byte {
	b := s.free[:n]
	s.free = s.free[(n+63)/64*64:]
	return b
}

// takeOf takes n elements of T.
func takeOf[T any](s *scratch, n int) []T {
	var t T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(s.take(n*int(unsafe.Sizeof(t)))))), n)
}

// bytesOf is the memory of x.
func bytesOf[T float32 | int32](x []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

// as is the memory of t as elements of T, which has the size of t's type.
func as[T float32 | uint16 | int32](t tensor) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(t.data))), t.NumElements())
}

func (t tensor) f32() []float32 { return as[float32](t) }
func (t tensor) bf16() []uint16 { return as[uint16](t) }
func (t tensor) i32() []int32   { return as[int32](t) }

// narrow reports whether t is computed with in bfloat16.
func (t tensor) narrow() bool { return t.DType == dtype.BFloat16 }
