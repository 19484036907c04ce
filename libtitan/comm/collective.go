package comm

import (
	"context"
	"strconv"
	"strings"

	"titan/libtitan/dtype"
)

func (r *rank) AllGather(ctx context.Context, g Group, what string, tensors ...Gathered) error {
	bytes := 0
	for _, t := range tensors {
		bytes += len(t.Mine)
	}
	c := r.begin(ctx, g, "all_gather", what, several(len(tensors)), bytes)
	for _, t := range tensors {
		if c.fit(t.Out) && len(t.Out[c.at]) != len(t.Mine) {
			c.bad = c.bug("this rank gives %d bytes and has room for %d", len(t.Mine), len(t.Out[c.at]))
		}
	}
	return c.end(c.each(len(tensors), func(k, _ int) []byte { return tensors[k].Mine }, func(k int) error {
		out := tensors[k].Out
		if err := c.take(func(i int) int { return len(out[i]) }); err != nil {
			return err
		}
		copy(out[c.at], tensors[k].Mine)
		return c.read(func(i int) []byte { return out[i] })
	}))
}

// several tells apart the calls that move several tensors.
func several(n int) string {
	if n == 1 {
		return ""
	}
	return strconv.Itoa(n) + " tensors"
}

// each posts n tensors at once and then takes one after the other: they are on their way together.
func (c *call) each(n int, give func(k, i int) []byte, take func(k int) error) error {
	for k := range n {
		if err := c.post(func(i int) []byte { return give(k, i) }); err != nil {
			return err
		}
	}
	for k := range n {
		if err := take(k); err != nil {
			return err
		}
	}
	return nil
}

func (r *rank) AllToAll(ctx context.Context, g Group, what string, in, out [][]byte) error {
	c := r.begin(ctx, g, "all_to_all", what, "", total(in))
	if c.fit(in, out) && len(out[c.at]) != len(in[c.at]) {
		c.bad = c.bug("this rank gives itself %d bytes and has room for %d", len(in[c.at]), len(out[c.at]))
	}
	err := c.meet(func(i int) []byte { return in[i] }, func(i int) int { return len(out[i]) })
	if err == nil {
		copy(out[c.at], in[c.at])
		err = c.read(func(i int) []byte { return out[i] })
	}
	return c.end(err)
}

func (r *rank) ReduceScatter(ctx context.Context, g Group, what string, dt dtype.DType, op Op, tensors ...Scattered) error {
	bytes := 0
	for _, t := range tensors {
		bytes += total(t.Pieces)
	}
	c := r.begin(ctx, g, "reduce_scatter", what, strings.TrimSpace(op.String()+" of "+dt.String()+" "+several(len(tensors))), bytes)
	var f reducer
	for _, t := range tensors {
		if c.fit(t.Pieces) && len(t.Out) != len(t.Pieces[c.at]) {
			c.bad = c.bug("this rank gives itself %d bytes and has room for %d", len(t.Pieces[c.at]), len(t.Out))
		}
		f = c.reducer(dt, op, t.Pieces...)
	}
	return c.end(c.each(len(tensors), func(k, i int) []byte { return tensors[k].Pieces[i] }, func(k int) error {
		out := tensors[k].Out
		if err := c.take(func(int) int { return len(out) }); err != nil {
			return err
		}
		defer c.close()
		return c.reduce(f, op, out, tensors[k].Pieces[c.at])
	}))
}

// small is up to how many bytes all members sum everything: one meeting, not two.
const small = 4096

func (r *rank) AllReduce(ctx context.Context, g Group, what string, dt dtype.DType, op Op, tensors ...[]byte) error {
	bytes := total(tensors)
	detail := op.String() + " of " + dt.String() + ", " + strconv.Itoa(bytes) + " bytes"
	c := r.begin(ctx, g, "all_reduce", what, detail, bytes)
	f := c.reducer(dt, op, tensors...)
	if bytes <= small {
		return c.end(c.reduceAll(f, op, tensors))
	}
	return c.end(c.reduceInParts(f, op, dt.Size(), tensors))
}

// reduceAll gives all of the tensors to all members.
func (c *call) reduceAll(f reducer, op Op, tensors [][]byte) error {
	sums := make([][]byte, len(tensors)) // tensors are still read by others
	err := c.each(len(tensors), func(k, _ int) []byte { return tensors[k] }, func(k int) error {
		if err := c.take(func(int) int { return len(tensors[k]) }); err != nil {
			return err
		}
		defer c.close()
		sums[k] = make([]byte, len(tensors[k]))
		return c.reduce(f, op, sums[k], tensors[k])
	})
	if err == nil {
		err = c.settle()
	}
	if err != nil {
		return err
	}
	for k, sum := range sums {
		copy(tensors[k], sum)
	}
	return nil
}

// reduceInParts makes each member reduce one part of each tensor, then gathers the parts. Nobody else reads this
// member's own part, so it is reduced in place.
func (c *call) reduceInParts(f reducer, op Op, size int, tensors [][]byte) error {
	part := func(k, i int) []byte {
		n := len(tensors[k]) / size
		return tensors[k][n*i/len(c.ranks)*size : n*(i+1)/len(c.ranks)*size]
	}
	mine := func(k, _ int) []byte { return part(k, c.at) }
	err := c.each(len(tensors), part, func(k int) error {
		if err := c.take(func(int) int { return len(mine(k, 0)) }); err != nil {
			return err
		}
		defer c.close()
		return c.reduce(f, op, mine(k, 0), mine(k, 0))
	})
	if err == nil {
		err = c.settle()
	}
	if err != nil {
		return err
	}
	return c.each(len(tensors), mine, func(k int) error {
		if err := c.take(func(i int) int { return len(part(k, i)) }); err != nil {
			return err
		}
		return c.read(func(i int) []byte { return part(k, i) })
	})
}

// reduce sets dst to the reduction of what the members gave, own for this one.
func (c *call) reduce(f reducer, op Op, dst, own []byte) error {
	srcs, err := c.views(own)
	if err == nil {
		f(op, dst, srcs)
	}
	return err
}

func total(pieces [][]byte) int {
	n := 0
	for _, p := range pieces {
		n += len(p)
	}
	return n
}
