package cpu

import (
	"math"
	"sync/atomic"

	"titan/libtitan/scalar"
)

// Values are what a fused program reads or writes: one of the two slices.
type Values struct {
	F32  []float32
	BF16 []uint16
}

// fusedTile is the elements of a tile of a program that treats all elements alike: ten values of it fit the L1 cache.
const fusedTile = 1024

// Fused runs p on rows of width elements, a tile at a time, so that what is between its steps stays in the cache. A result
// whose add is set is added to what is there; such results are float32. Results share no memory with each other or with what
// is read.
//
// Each step is one operation on float32, rounded: nothing of two steps is contracted. So an element's bits are those that the
// kernels of the separate ops give it.
func (e *Engine) Fused(p *scalar.Program, rows, width int, in, out []Values, add []bool) {
	grain := rowGrain
	if p.Flat() {
		n := rows * width
		if n%fusedTile == 0 {
			rows, width = n/fusedTile, fusedTile
		} else if n < fusedTile {
			rows, width = 1, n
		}
		grain = max(1, flatGrain/max(width, 1))
	}
	sums := e.newColumnSums(p, rows, width)
	tops := make([]atomic.Uint32, len(out))
	e.For(rows, grain, func(lo, hi int) {
		t := e.newTile(p, width, in, out, add)
		defer e.giveBack(t.room)
		t.sums = sums.of(lo / grain)
		for r := lo; r < hi; r++ {
			t.row(r)
		}
		for _, i := range p.Largest() {
			for have := tops[i].Load(); have < t.top[i] && !tops[i].CompareAndSwap(have, t.top[i]); have = tops[i].Load() {
			}
		}
	})
	sums.finish(e, out, add)
	for _, i := range p.Largest() {
		out[i].F32[0] = math.Float32frombits(tops[i].Load())
	}
}

// tile runs a program on one row.
type tile struct {
	p       *scalar.Program
	steps   []int // that give each row its own
	k       *kernels
	width   int
	in, out []Values
	add     []bool
	room    *arena
	full    [][]float32 // by step: a row of a Full value, or all of a Col; of a One as many as a row has
	one     []float32   // by step: a Row or One value
	direct  []bool      // by result: a step writes it where it belongs
	bits    []uint16
	sums    [][]float32 // by result: what its columns add up to
	top     []uint32    // by result: the bits of the largest magnitude
}

func (e *Engine) newTile(p *scalar.Program, width int, in, out []Values, add []bool) *tile {
	n := len(p.Steps)
	t := &tile{p: p, k: e.k, width: width, in: in, out: out, add: add, full: make([][]float32, n), one: make([]float32, n), bits: make([]uint16, width), direct: direct(p, out, add), top: make([]uint32, len(p.Out))}
	t.room = e.borrow(n*width, n)
	for i := range t.full {
		t.full[i] = t.room.take(width)
	}
	for i, o := range p.In {
		switch o.Kind {
		case scalar.Col:
			t.full[o.Value] = t.read(in[i], 0, t.full[o.Value])
		case scalar.One:
			t.one[o.Value] = t.number(in[i], 0)
			fill(t.full[o.Value], t.one[o.Value])
		}
	}
	for i, s := range p.Steps {
		switch {
		case s.Code == scalar.Input:
		case s.Kind == scalar.Col || s.Kind == scalar.One: // the same for all rows
			t.step(i, s)
		default:
			t.steps = append(t.steps, i)
		}
	}
	return t
}

// direct finds the results of p that its steps can write: Full, float32, not added to, the first of their value.
func direct(p *scalar.Program, out []Values, add []bool) []bool {
	is, taken := make([]bool, len(p.Out)), make([]bool, len(p.Steps))
	for i, o := range p.Out {
		s := p.Steps[o.Value]
		is[i] = o.Kind == scalar.Full && s.Kind == scalar.Full && s.Code != scalar.Input && out[i].F32 != nil && !add[i] && !taken[o.Value]
		taken[o.Value] = taken[o.Value] || is[i]
	}
	return is
}

// read gives width elements of v from at on as float32.
func (t *tile) read(v Values, at int, buf []float32) []float32 {
	if v.BF16 == nil {
		return v.F32[at:][:t.width]
	}
	t.k.widen(buf, v.BF16[at:][:t.width])
	return buf
}

func (t *tile) number(v Values, at int) float32 {
	if v.BF16 == nil {
		return v.F32[at]
	}
	return math.Float32frombits(uint32(v.BF16[at]) << 16)
}

// row runs every step on row r, and writes what leaves.
func (t *tile) row(r int) {
	for i, o := range t.p.In {
		switch o.Kind {
		case scalar.Full:
			t.full[o.Value] = t.read(t.in[i], r*t.width, t.full[o.Value])
		case scalar.Row:
			t.one[o.Value] = t.number(t.in[i], r)
		}
	}
	for i, o := range t.p.Out {
		if t.direct[i] {
			t.full[o.Value] = t.out[i].F32[r*t.width:][:t.width]
		}
	}
	for _, i := range t.steps {
		t.step(i, t.p.Steps[i])
	}
	for i, o := range t.p.Out {
		if !t.direct[i] {
			t.write(i, o, r)
		}
	}
}

func (t *tile) write(i int, o scalar.Port, r int) {
	switch {
	case o.Kind == scalar.Col:
		t.k.add(t.sums[i], t.sums[i], t.full[o.Value])
	case o.Kind == scalar.One:
		t.top[i] = largest(t.top[i], t.full[o.Value])
	case o.Kind == scalar.Row:
		t.out[i].F32[r] = t.one[o.Value]
	case t.out[i].BF16 != nil:
		t.k.narrow(t.out[i].BF16[r*t.width:][:t.width], t.full[o.Value])
	case t.add[i]:
		y := t.out[i].F32[r*t.width:][:t.width]
		t.k.add(y, y, t.full[o.Value])
	default:
		copy(t.out[i].F32[r*t.width:], t.full[o.Value])
	}
}
