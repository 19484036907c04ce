package plan

import (
	"slices"

	"titan/libtitan/graph"
	"titan/libtitan/op"
)

// Gathers reports whether a step gathers stored parameters. It depends on no other step of its microbatch.
func (s *Step) Gathers() bool {
	if s.Kind != Compute || s.Node.Op.Name != string(op.AllGather) {
		return false
	}
	for _, v := range s.Node.In {
		if v.Node.Op.Name == "cast" {
			v = v.Node.In[0]
		}
		if v.Node.Op != graph.ParamOp {
			return false
		}
	}
	return true
}

// Prefetch moves each gather of parameters up to where the one before it is made, so that it can run beside what is
// computed with those; its inputs live until its results are used. It costs the memory of one more unit.
func (p *Program) Prefetch() {
	var gathers []int
	for i := range p.Steps {
		if p.Steps[i].Gathers() {
			gathers = append(gathers, i)
		}
	}
	if len(gathers) < 2 {
		return
	}
	var steps []Step
	for i, s := range p.Steps {
		at := slices.Index(gathers, i)
		if at <= 0 {
			steps = append(steps, s)
		}
		if at >= 0 && at+1 < len(gathers) {
			steps = append(steps, p.Steps[gathers[at+1]])
		}
	}
	p.Steps = steps
	(&builder{prog: p}).lifetimes()
	p.hold()
	p.ArenaBytes = place(p.Slots)
}

// hold keeps what gathers read until the first use of what they make.
func (p *Program) hold() {
	for i := range p.Steps {
		if !p.Steps[i].Gathers() {
			continue
		}
		until := len(p.Steps) - 1
		for j := i + 1; j < len(p.Steps); j++ {
			if slices.ContainsFunc(p.Steps[j].In, func(in *Slot) bool {
				return slices.ContainsFunc(p.Steps[i].Out, func(o *Slot) bool { return in.Root() == o.Root() })
			}) {
				until = j
				break
			}
		}
		for _, in := range p.Steps[i].In {
			in.Root().Last = max(in.Root().Last, until)
		}
	}
}
