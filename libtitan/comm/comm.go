// Package comm says what a communication engine does for the ranks of a job, and builds it from little: an
// engine in a subfolder is a [Wire] that moves messages, and [New] makes a [Comm] of it. So collectives,
// their order of summation, their checks and their errors are the same on every engine, bit for bit.
package comm

import (
	"context"
	"fmt"
	"time"

	"titan/libtitan/dtype"
)

// Comm is one rank's end of an engine. Any number of goroutines may call it, but the members of a group must call
// its collectives in one order. A call blocks until it is done, ctx ends, or a rank was waited for too long.
// A call that fails ends the job: it and every later call of every rank return that error.
//
// what names a collective in errors and logs: an op, an FQN. Members must agree on it.
type Comm interface {
	Rank() int
	Size() int
	// Send hands data to rank to under tag and does not wait for it: data may be reused when it returns.
	Send(ctx context.Context, to int, tag string, data []byte) error
	// Recv fills data with what rank from sent under tag, in the order of sending; the lengths must agree.
	Recv(ctx context.Context, from int, tag string, data []byte) error
	// Sum replaces data, on every rank, by its sum over the ranks, added in rank order.
	Sum(ctx context.Context, data []float64) error
	// Barrier returns when all ranks have called it.
	Barrier(ctx context.Context) error
	// SetTimeout says how long calls that begin from now on wait for a rank.
	SetTimeout(d time.Duration)

	// AllGather gathers tensors over g, all in one collective.
	AllGather(ctx context.Context, g Group, what string, tensors ...Gathered) error
	// ReduceScatter reduces tensors over g in the order of members, and leaves each member its piece.
	ReduceScatter(ctx context.Context, g Group, what string, dt dtype.DType, op Op, tensors ...Scattered) error
	// AllReduce replaces tensors by their reduction over g in the order of members: the same bits on all.
	AllReduce(ctx context.Context, g Group, what string, dt dtype.DType, op Op, tensors ...[]byte) error
	// AllToAll fills out[i] with member i's in[me]; in and out do not overlap.
	AllToAll(ctx context.Context, g Group, what string, in, out [][]byte) error
}

// Gathered is a tensor of an AllGather: Out[i] becomes what member i gives as Mine. len(Out[i]) is its length: it may
// differ by member and may be 0.
type Gathered struct {
	Mine []byte
	Out  [][]byte
}

// Scattered is a tensor of a ReduceScatter: Out becomes the reduction of the members' Pieces[me]. Lengths may differ by
// piece; Out may be Pieces[me] and overlaps nothing else.
type Scattered struct {
	Pieces [][]byte
	Out    []byte
}

// Group is the ranks that take part in a collective, in their order; the caller is one of them.
// Groups of the same ranks and different names do not meet.
type Group struct {
	Name  string // the mesh axes: "dp_shard"
	Ranks []int
}

// String is "dp_shard [2 3]", and "dp_shard [0 2 .. 62]" for many ranks with a stride.
func (g Group) String() string {
	r := g.Ranks
	for i := 2; i < len(r); i++ {
		if r[i]-r[i-1] != r[1]-r[0] {
			return fmt.Sprintf("%s %v", g.Name, r)
		}
	}
	if len(r) <= 8 {
		return fmt.Sprintf("%s %v", g.Name, r)
	}
	return fmt.Sprintf("%s [%d %d .. %d]", g.Name, r[0], r[1], r[len(r)-1])
}

// World is the group of all ranks.
func World(size int) Group {
	g := Group{Name: "world", Ranks: make([]int, size)}
	for r := range g.Ranks {
		g.Ranks[r] = r
	}
	return g
}

// Op is how a reduction joins two elements.
type Op uint8

// The reductions. bfloat16 is summed in float32 and rounded once; Max of anything with NaN is NaN.
const (
	Sum Op = iota
	Max
)

func (o Op) String() string {
	if o <= Max {
		return [...]string{"sum", "max"}[o]
	}
	return fmt.Sprintf("op(%d)", uint8(o))
}
