package exec

import (
	"errors"
	"fmt"

	"titan/libtitan/device/cuda"
	"titan/libtitan/op"
	"titan/libtitan/plan"
)

// Cost is what a step of a class has to do at least: floating-point operations of products, and bytes read and written.
type Cost struct {
	Class        string
	FLOPs, Bytes float64
}

// Time is what all steps of a class have to do, and how long they took.
type Time struct {
	Cost
	Steps        int
	Milliseconds float64
}

// costOf is the cost of a step. A class is an op, and of a product its rule and sizes.
func costOf(s *plan.Step) Cost {
	switch s.Kind {
	case plan.Accumulate:
		return Cost{"accumulate", 0, float64(s.In[0].Bytes() + 2*s.Out[0].Bytes())}
	case plan.Send, plan.Recv:
		return Cost{Class: "to and from stages"}
	}
	c := Cost{Class: s.Node.Op.Name}
	for _, in := range s.In {
		c.Bytes += float64(in.Bytes())
	}
	for i, out := range s.Out {
		c.Bytes += float64(out.Bytes())
		if s.Add[i] {
			c.Bytes += float64(out.Bytes())
		}
	}
	product := func(spec string, b *plan.Slot) {
		if p, err := lower(spec, s.In[0].Shape, b.Shape); err == nil {
			c.Class += fmt.Sprintf(" %s %dx%dx%d", spec, p.m, p.n, p.k)
			c.FLOPs = 2 * float64(p.m) * float64(p.n) * float64(p.k)
		}
	}
	switch a := s.Node.Attr.(type) {
	case op.EinsumAttr:
		product(a.Spec, s.In[1])
	case op.FusedAttr:
		c.Class += " " + a.Hash()
	case op.Float8ProductAttr:
		product(a.Stored(), s.In[2])
	case op.Float8CastAttr:
		c.Class += fmt.Sprintf(" %v to %v, %v", s.In[0].DType, a.To, a.Copies)
	case op.AmaxAttr:
		c.Class += fmt.Sprintf(" of %v", s.In[0].DType)
	}
	switch s.Node.Op.Name {
	case "embedding": // rows of the table
		c.Bytes = 2 * float64(s.Out[0].Bytes())
	case "attention":
		c.FLOPs = attentionFLOPs(s.In[0].Shape, s.In[1].Shape)
	case "attention_backward":
		c.FLOPs = 2.5 * attentionFLOPs(s.In[1].Shape, s.In[2].Shape)
	}
	return c
}

// attentionFLOPs are those of the forward, causal: q is [batch, seq, heads, headDim].
func attentionFLOPs(q, k []int) float64 {
	return 2 * float64(q[0]) * float64(q[1]) * float64(k[1]) * float64(q[2]*q[3])
}

// Times runs a program on a GPU once, step by step, and adds up how long steps of a class took there: without what
// taking the time takes.
func (r *Runner) Times() ([]Time, error) {
	g := r.gpu
	if g == nil || g.cached {
		return nil, errors.New("exec: only what lies in the planned memory of a GPU is timed")
	}
	events := make([]*cuda.Event, len(g.works)+2) // nothing is done between the last two
	for i := range events {
		var err error
		if events[i], err = g.e.NewEvent(true); err != nil {
			return nil, err
		}
		defer events[i].Close()
	}
	for i, e := range events {
		if i > 0 && i <= len(g.works) {
			if err := g.step(i - 1); err != nil {
				return nil, err
			}
		}
		if err := g.e.Stream.Record(e); err != nil {
			return nil, err
		}
	}
	if err := g.e.Stream.Sync(); err != nil {
		return nil, err
	}
	return g.sum(events)
}

// sum adds up by class, in the order in which classes first come.
func (g *gpuProgram) sum(events []*cuda.Event) (out []Time, err error) {
	at := map[string]int{}
	nothing, err := events[len(g.works)+1].Since(events[len(g.works)])
	if err != nil {
		return nil, err
	}
	for i, c := range g.costs {
		ms, err := events[i+1].Since(events[i])
		if err != nil {
			return nil, err
		}
		k, ok := at[c.Class]
		if !ok {
			k, at[c.Class] = len(out), len(out)
			out = append(out, Time{Cost: Cost{Class: c.Class}})
		}
		t := &out[k]
		t.Steps++
		t.Milliseconds += max(0, float64(ms-nothing))
		t.FLOPs += c.FLOPs
		t.Bytes += c.Bytes
	}
	return out, nil
}
