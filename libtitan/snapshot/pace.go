package snapshot

import (
	"strings"

	"titan/libtitan/alloc"
	"titan/libtitan/op"
	"titan/libtitan/plan"
)

// Pace is how fast a GPU and its host are: how far the host runs ahead. It is coarse, for what matters is which of the
// first moves of a step end while the host still puts the rest on streams.
type Pace struct {
	FLOPS  float64 // of products, a second
	Memory float64 // bytes a second, reads and writes together
	Link   float64 // bytes a second between GPUs, one direction
	Host   float64 // seconds in which the host puts a step of the program on a stream
	First  float64 // the same the first time, when memory is taken from the driver and libraries make what they make once
}

// clock follows the streams of a GPU and the host that is ahead of them; times are seconds.
type clock struct {
	Pace
	host float64
	runs int                      // of the program
	busy map[alloc.Stream]float64 // until when
	done map[int]float64          // when a step's move ends
}

// launch puts step i of prog on its stream, after the moves that it waits for.
func (c *clock) launch(prog *plan.Program, i int, on alloc.Stream, after []int) {
	if c.runs == 0 {
		c.host += c.First
	} else {
		c.host += c.Host
	}
	at := max(c.host, c.busy[plan.ComputeStream])
	for _, j := range after {
		at = max(at, c.done[j])
	}
	if on != plan.ComputeStream { // what it waits for holds the stream that computes up too
		c.busy[plan.ComputeStream] = at
	}
	c.busy[on] = max(at, c.busy[on]) + c.seconds(&prog.Steps[i])
	c.done[i] = c.busy[on]
}

// sync has the host wait for all streams.
func (c *clock) sync() {
	c.runs++
	for _, at := range c.busy {
		c.host = max(c.host, at)
	}
}

// seconds is how long a step takes the GPU.
func (c *clock) seconds(s *plan.Step) float64 {
	var moved float64
	for _, list := range [][]*plan.Slot{s.In, s.Out} {
		for _, v := range list {
			moved += float64(v.Bytes())
		}
	}
	if s.Kind != plan.Compute {
		return moved / c.Memory
	}
	switch a := s.Node.Attr.(type) {
	case op.EinsumAttr:
		return max(products(a.Spec, s)/c.FLOPS, moved/c.Memory)
	case op.AttentionAttr:
		return max(attended(s)/c.FLOPS, moved/c.Memory)
	case op.MoveAttr:
		return moved / c.Link
	}
	return moved / c.Memory
}

// products is the FLOPs of an einsum: 2 for each combination of its letters.
func products(spec string, s *plan.Step) float64 {
	inputs, _, _ := strings.Cut(spec, "->")
	size := map[rune]int{}
	for i, letters := range strings.Split(inputs, ",") {
		for d, letter := range []rune(letters) {
			if i < len(s.In) && d < len(s.In[i].Shape) {
				size[letter] = s.In[i].Shape[d]
			}
		}
	}
	flops := 2.0
	for _, n := range size {
		flops *= float64(n)
	}
	return flops
}

// attended is the FLOPs of causal attention, forward or, with its five products to the forward's two, backward.
func attended(s *plan.Step) float64 {
	q, k, share := s.In[0], s.In[1], 1.0
	if len(s.Out) == 3 {
		q, k, share = s.In[1], s.In[2], 2.5
	}
	if len(q.Shape) != 4 || len(k.Shape) != 4 {
		return 0
	}
	return 2 * share * float64(q.NumElements()) * float64(k.Shape[1])
}
