package plan

import (
	"slices"

	"titan/libtitan/graph"
	"titan/libtitan/op"
)

// Overlap orders steps so that FSDP's moves can run beside what is computed. Each gather of parameters is made where the
// one before it is, a unit early; what a reduction leaves is added to the gradients where the next reduction is made, a
// unit late. These moves are Aside; what they read lives until their results are used. It costs the memory of one more
// unit of each.
func (p *Program) Overlap() {
	p.roomsOnDevice()
	gathers := p.markAside()
	steps := make([]Step, 0, len(p.Steps))
	var late []Step
	for i := 0; i < len(p.Steps); i++ {
		at := slices.Index(gathers, i)
		n := 0
		if at < 0 && p.Steps[i].Aside {
			steps = append(steps, late...)
			n = p.accumulates(i)
			late = p.Steps[i+1:][:n]
		}
		if at <= 0 {
			steps = append(steps, p.Steps[i])
		}
		if at >= 0 && at+1 < len(gathers) {
			steps = append(steps, p.Steps[gathers[at+1]])
		}
		i += n
	}
	p.Steps = append(steps, late...)
	p.relive()
}

// relive places what lives anew, after steps have changed.
func (p *Program) relive() {
	(&builder{prog: p}).lifetimes()
	p.hold()
	p.ArenaBytes, p.WindowBytes = place(p.Slots), place(p.Windows)
}

// markAside finds the moves that can be Aside, and gives the places of the gathers.
func (p *Program) markAside() (gathers []int) {
	for i := range p.Steps {
		s := &p.Steps[i]
		switch {
		case s.gathers():
			gathers = append(gathers, i)
			s.Aside = true
		case p.accumulates(i) > 0:
			s.Aside = true
		}
	}
	return gathers
}

// gathers reports whether a step gathers stored parameters.
func (s *Step) gathers() bool {
	if s.Kind != Compute || s.Node.Op.Name != string(op.AllGather) {
		return false
	}
	for _, v := range s.Node.In {
		if v.Node.Op.Name == "cast" || v.Node.Op.Name == "float8_cast" {
			v = v.Node.In[0]
		}
		if v.Node.Op != graph.ParamOp {
			return false
		}
	}
	return true
}

// accumulates is how many steps after step i, a reduction, do nothing but add its results to gradients.
func (p *Program) accumulates(i int) int {
	s := &p.Steps[i]
	if s.Kind != Compute || s.Node.Op.Name != string(op.ReduceScatter) && s.Node.Op.Name != string(op.AllReduce) {
		return 0
	}
	n := 0
	for _, next := range p.Steps[i+1:] {
		if next.Kind != Accumulate || !slices.Contains(s.Out, next.In[0]) {
			break
		}
		n++
	}
	return n
}

// hold keeps what moves aside read until the first use of what they make.
func (p *Program) hold() {
	for i := range p.Steps {
		s := &p.Steps[i]
		if !s.Aside {
			continue
		}
		until := p.firstUse(i)
		for _, in := range s.In {
			in.Root().Last = max(in.Root().Last, until)
		}
	}
}

// firstUse is the first step after i that reads what i makes.
func (p *Program) firstUse(i int) int {
	made := map[*Slot]bool{}
	for _, o := range p.Steps[i].Out {
		made[o.Root()] = true
	}
	for j := i + 1; j < len(p.Steps); j++ {
		if slices.ContainsFunc(p.Steps[j].In, func(in *Slot) bool { return made[in.Root()] }) {
			return j
		}
	}
	return len(p.Steps) - 1
}
