package commtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"titan/libtitan/comm"
	"titan/libtitan/dtype"
)

const rounds = 20

// dice are random numbers that all ranks of a case share.
func dice(round int) *rand.Rand { return rand.New(rand.NewPCG(uint64(round), 7)) }

// stagger makes ranks come in any order.
func stagger(round, rank int) {
	if d := rand.New(rand.NewPCG(uint64(round), uint64(rank))).IntN(3); d > 0 {
		time.Sleep(time.Duration(d) * 100 * time.Microsecond)
	}
}

// lengths are counts of elements: none, few, and past what an engine sends in one go.
var lengths = []int{0, 1, 2, 3, 5, 127, 1024, 1025, 4097, 20011}

func length(d *rand.Rand) int { return lengths[d.IntN(len(lengths))] }

// elements is n random elements of dt: numbers whose sums round differently in another order.
func elements(d *rand.Rand, dt dtype.DType, n int) []byte {
	b := make([]byte, 0, n*dt.Size())
	for range n {
		u := d.Uint64()
		x := float64(int64(u)) / float64(uint64(1)<<(u%40+20))
		switch dt {
		case dtype.Float32:
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(x)))
		case dtype.Float64:
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(x))
		case dtype.BFloat16:
			b = binary.LittleEndian.AppendUint16(b, dtype.BF16(float32(x)))
		case dtype.Int64:
			b = binary.LittleEndian.AppendUint64(b, u)
		}
	}
	return b
}

// reduced is the reduction of bufs in their order, element by element.
func reduced(dt dtype.DType, op comm.Op, bufs [][]byte) []byte {
	var out []byte
	for at := 0; at < len(bufs[0]); at += dt.Size() {
		switch dt {
		case dtype.Float32:
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(fold(op, bufs, func(b []byte) float32 {
				return math.Float32frombits(binary.LittleEndian.Uint32(b[at:]))
			})))
		case dtype.Float64:
			out = binary.LittleEndian.AppendUint64(out, math.Float64bits(fold(op, bufs, func(b []byte) float64 {
				return math.Float64frombits(binary.LittleEndian.Uint64(b[at:]))
			})))
		case dtype.BFloat16:
			out = binary.LittleEndian.AppendUint16(out, dtype.BF16(fold(op, bufs, func(b []byte) float32 {
				return dtype.F32(binary.LittleEndian.Uint16(b[at:]))
			})))
		case dtype.Int64:
			out = binary.LittleEndian.AppendUint64(out, uint64(fold(op, bufs, func(b []byte) int64 {
				return int64(binary.LittleEndian.Uint64(b[at:]))
			})))
		}
	}
	return out
}

func fold[T float32 | float64 | int64](op comm.Op, bufs [][]byte, at func(b []byte) T) T {
	acc := at(bufs[0])
	for _, b := range bufs[1:] {
		if op == comm.Max {
			acc = max(acc, at(b))
		} else {
			acc += at(b)
		}
	}
	return acc
}

var dtypes = []dtype.DType{dtype.Float32, dtype.Float64, dtype.BFloat16, dtype.Int64}

func same(what string, got, want []byte) error {
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%s: %d bytes, not the %d expected or other bits", what, len(got), len(want))
	}
	return nil
}

func gather(ctx context.Context, c comm.Comm) error {
	for round := range rounds {
		if err := gatherOnce(ctx, c, comm.World(c.Size()), round); err != nil {
			return err
		}
	}
	return nil
}

func gatherOnce(ctx context.Context, c comm.Comm, g comm.Group, round int) error {
	d := dice(round)
	var tensors []comm.Gathered
	var want [][][]byte
	for range 1 + round%3 {
		var t comm.Gathered
		var all [][]byte
		for _, r := range g.Ranks {
			b := elements(d, dtype.Float32, length(d))
			all, t.Out = append(all, b), append(t.Out, make([]byte, len(b)))
			if r == c.Rank() {
				t.Mine = bytes.Clone(b)
			}
		}
		tensors, want = append(tensors, t), append(want, all)
	}
	stagger(round, c.Rank())
	what := fmt.Sprint("gather ", round)
	if err := c.AllGather(ctx, g, what, tensors...); err != nil {
		return err
	}
	for k, t := range tensors {
		clear(t.Mine) // it is the caller's again
		for i := range t.Out {
			if err := same(what, t.Out[i], want[k][i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func scatter(ctx context.Context, c comm.Comm) error {
	n, me := c.Size(), c.Rank()
	for round := range rounds {
		d := dice(round)
		dt, op := dtypes[round%len(dtypes)], comm.Op(d.IntN(2))
		var tensors []comm.Scattered
		var want [][]byte
		for range 1 + round%3 {
			t, mine := scattered(d, dt, n, me)
			if round%4 == 0 {
				t.Out = t.Pieces[me]
			}
			tensors, want = append(tensors, t), append(want, reduced(dt, op, mine))
		}
		stagger(round, me)
		if err := c.ReduceScatter(ctx, comm.World(n), "scatter", dt, op, tensors...); err != nil {
			return err
		}
		for k, t := range tensors {
			if err := same("scatter", t.Out, want[k]); err != nil {
				return fmt.Errorf("round %d: tensor %d: %v %v: %w", round, k, op, dt, err)
			}
		}
	}
	return nil
}

// scattered is a tensor that n ranks reduce, and the pieces of all ranks that are reduced to me's.
func scattered(d *rand.Rand, dt dtype.DType, n, me int) (t comm.Scattered, mine [][]byte) {
	lengths := make([]int, n)
	for i := range lengths {
		lengths[i] = length(d)
	}
	for r := range n {
		for i := range n {
			b := elements(d, dt, lengths[i])
			if r == me {
				t.Pieces = append(t.Pieces, b)
			}
			if i == me {
				mine = append(mine, bytes.Clone(b))
			}
		}
	}
	t.Out = make([]byte, len(mine[0]))
	return t, mine
}

func reduce(ctx context.Context, c comm.Comm) error {
	for round := range rounds {
		if err := reduceOnce(ctx, c, comm.World(c.Size()), round); err != nil {
			return err
		}
	}
	return nil
}

func reduceOnce(ctx context.Context, c comm.Comm, g comm.Group, round int) error {
	d := dice(round)
	dt, op := dtypes[round%len(dtypes)], comm.Op(d.IntN(2))
	var tensors, want [][]byte
	for range 1 + round%3 {
		n := length(d)
		var all [][]byte
		for _, r := range g.Ranks {
			b := elements(d, dt, n)
			all = append(all, b)
			if r == c.Rank() {
				tensors = append(tensors, bytes.Clone(b))
			}
		}
		want = append(want, reduced(dt, op, all))
	}
	stagger(round, c.Rank())
	if err := c.AllReduce(ctx, g, "reduce", dt, op, tensors...); err != nil {
		return err
	}
	for k, t := range tensors {
		if err := same("reduce", t, want[k]); err != nil {
			return fmt.Errorf("round %d: tensor %d: %v %v: %w", round, k, op, dt, err)
		}
	}
	return nil
}

func allToAll(ctx context.Context, c comm.Comm) error {
	n, me := c.Size(), c.Rank()
	for round := range rounds {
		d := dice(round)
		in, out, want := make([][]byte, n), make([][]byte, n), make([][]byte, n)
		for from := range n {
			for to := range n {
				b := elements(d, dtype.BFloat16, length(d))
				if from == me {
					in[to] = b
				}
				if to == me {
					want[from], out[from] = bytes.Clone(b), make([]byte, len(b))
				}
			}
		}
		stagger(round, me)
		if err := c.AllToAll(ctx, comm.World(n), "tokens", in, out); err != nil {
			return err
		}
		for i := range out {
			if err := same("tokens", out[i], want[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// groups is a mesh of rows and columns; each rank is in both, and a row's ranks run backwards.
func groups(ctx context.Context, c comm.Comm) error {
	if c.Size()%2 != 0 {
		return nil
	}
	row, column := comm.Group{Name: "tp"}, comm.Group{Name: "dp_shard"}
	cols := c.Size() / 2
	for i := range cols {
		row.Ranks = append(row.Ranks, c.Rank()/cols*cols+cols-1-i)
	}
	for i := range 2 {
		column.Ranks = append(column.Ranks, c.Rank()%cols+i*cols)
	}
	for round := range rounds {
		if err := gatherOnce(ctx, c, row, round); err != nil {
			return err
		}
		if err := reduceOnce(ctx, c, column, round); err != nil {
			return err
		}
		if err := reduceOnce(ctx, c, row, round+1); err != nil {
			return err
		}
	}
	return nil
}

// allAtOnce has a goroutine a group, and messages beside them.
func allAtOnce(ctx context.Context, c comm.Comm) error {
	var g errgroup.Group
	for k := range 3 {
		group := comm.World(c.Size())
		group.Name = fmt.Sprint("axis", k)
		g.Go(func() error {
			for round := range rounds {
				if err := reduceOnce(ctx, c, group, 3*round+k); err != nil {
					return err
				}
			}
			return nil
		})
	}
	g.Go(func() error { return tags(ctx, c) })
	return g.Wait()
}

// tags sends much before anything is received, and receives it in another order.
func tags(ctx context.Context, c comm.Comm) error {
	n, me := c.Size(), c.Rank()
	next, prev := (me+1)%n, (me+n-1)%n
	body := func(from, i int) []byte { return elements(dice(100*from+i), dtype.Float32, lengths[i%len(lengths)]) }
	for i := range rounds {
		b := body(me, i)
		if err := c.Send(ctx, next, fmt.Sprint("act ", i%3), b); err != nil {
			return err
		}
		clear(b)
	}
	for _, tag := range []int{2, 0, 1} {
		for i := tag; i < rounds; i += 3 {
			want := body(prev, i)
			got := make([]byte, len(want))
			if err := c.Recv(ctx, prev, fmt.Sprint("act ", tag), got); err != nil {
				return err
			}
			if err := same("act", got, want); err != nil {
				return fmt.Errorf("message %d: %w", i, err)
			}
		}
	}
	return nil
}

func sumAndBarrier(ctx context.Context, c comm.Comm) error {
	n, me := c.Size(), c.Rank()
	for round := range 5 * rounds {
		sum := []float64{float64(me), 0.1, float64(round)}
		if err := c.Sum(ctx, sum); err != nil {
			return err
		}
		tenths := 0.1
		for range n - 1 {
			tenths += 0.1
		}
		if sum[0] != float64(n*(n-1)/2) || sum[1] != tenths || sum[2] != float64(n*round) {
			return fmt.Errorf("sum %v", sum)
		}
		if err := c.Barrier(ctx); err != nil {
			return err
		}
	}
	return nil
}
