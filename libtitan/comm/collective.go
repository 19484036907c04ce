package comm

import (
	"context"
	"strconv"

	"titan/libtitan/dtype"
)

func (r *rank) AllGather(ctx context.Context, g Group, what string, mine []byte, out [][]byte) error {
	c := r.begin(ctx, g, "all_gather", what, "", len(mine))
	if c.fit(out) && len(out[c.at]) != len(mine) {
		c.bad = c.bug("this rank gives %d bytes and has room for %d", len(mine), len(out[c.at]))
	}
	err := c.meet(func(int) []byte { return mine }, func(i int) int { return len(out[i]) })
	if err == nil {
		copy(out[c.at], mine)
		err = c.read(func(i int) []byte { return out[i] })
	}
	return c.end(err)
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

func (r *rank) ReduceScatter(ctx context.Context, g Group, what string, dt dtype.DType, op Op, pieces [][]byte, out []byte) error {
	c := r.begin(ctx, g, "reduce_scatter", what, op.String()+" of "+dt.String(), total(pieces))
	if c.fit(pieces) && len(out) != len(pieces[c.at]) {
		c.bad = c.bug("this rank gives itself %d bytes and has room for %d", len(pieces[c.at]), len(out))
	}
	f := c.reducer(dt, op, pieces...)
	err := c.meet(func(i int) []byte { return pieces[i] }, func(int) int { return len(out) })
	if err == nil {
		err = c.reduce(f, op, out, pieces[c.at])
	}
	return c.end(err)
}

// small is up to how many bytes all members sum everything: one meeting, not two.
const small = 4096

func (r *rank) AllReduce(ctx context.Context, g Group, what string, dt dtype.DType, op Op, data []byte) error {
	detail := op.String() + " of " + dt.String() + ", " + strconv.Itoa(len(data)) + " bytes"
	c := r.begin(ctx, g, "all_reduce", what, detail, len(data))
	f := c.reducer(dt, op, data)
	if len(data) <= small {
		return c.end(c.reduceAll(f, op, data))
	}
	return c.end(c.reduceInParts(f, op, dt.Size(), data))
}

// reduceAll gives all of data to all members.
func (c *call) reduceAll(f reducer, op Op, data []byte) error {
	if err := c.meet(func(int) []byte { return data }, func(int) int { return len(data) }); err != nil {
		return err
	}
	sum := make([]byte, len(data)) // data is still read by others
	if err := c.reduce(f, op, sum, data); err != nil {
		return err
	}
	if err := c.settle(); err != nil {
		return err
	}
	copy(data, sum)
	return nil
}

// reduceInParts makes each member reduce one part of data, then gathers the parts. Nobody else reads this
// member's own part, so it is reduced in place.
func (c *call) reduceInParts(f reducer, op Op, size int, data []byte) error {
	n := len(data) / size
	part := func(i int) []byte {
		return data[n*i/len(c.ranks)*size : n*(i+1)/len(c.ranks)*size]
	}
	if err := c.meet(part, func(int) int { return len(part(c.at)) }); err != nil {
		return err
	}
	if err := c.reduce(f, op, part(c.at), part(c.at)); err != nil {
		return err
	}
	if err := c.settle(); err != nil {
		return err
	}
	if err := c.meet(func(int) []byte { return part(c.at) }, func(i int) int { return len(part(i)) }); err != nil {
		return err
	}
	return c.read(part)
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
