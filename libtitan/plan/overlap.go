package plan

import (
	"slices"

	"titan/libtitan/graph"
	"titan/libtitan/op"
)

// Overlap orders steps so that FSDP's moves can run beside what is computed. Each gather of parameters is made where the
// one before it is, a unit early, or once what it reads is made. Each reduction begins beside attention or, where a peer is
// waited for, beside that: products hold every multiprocessor until they end, and one that finds some taken takes as long
// again, where attention's short blocks go around. What a reduction leaves is added to the gradients where the next
// reduction is made, or at the end, when all have begun. These moves are Aside; what they read lives until their results
// are used. It costs the memory of one or two more units of each.
func (p *Program) Overlap() {
	p.roomsOnDevice()
	early, after := p.markAside()
	o := overlap{steps: make([]Step, 0, len(p.Steps))}
	for i := 0; i < len(p.Steps); i++ {
		switch s := &p.Steps[i]; {
		case s.reduces():
			n := p.accumulates(i)
			o.begin()
			o.waiting = p.Steps[i:][:1+n]
			if i += n; !p.roomBeforeNext(i) {
				o.begin()
			}
			continue
		case s.leavesRoom():
			o.begin()
		}
		if !early[i] {
			o.steps = append(o.steps, p.Steps[i])
		}
		for _, g := range after[i] {
			o.steps = append(o.steps, p.Steps[g])
		}
	}
	o.begin()
	p.Steps = append(o.steps, o.late...)
	p.beginLast()
	p.relive()
}

// overlap is steps in a new order: a reduction that has not begun, with what adds up its results, and those of the one
// that began last.
type overlap struct{ steps, waiting, late []Step }

// begin begins the reduction that waits.
func (o *overlap) begin() {
	if o.waiting == nil {
		return
	}
	o.steps = append(append(o.steps, o.late...), o.waiting[0])
	o.late, o.waiting = o.waiting[1:], nil
}

// roomBeforeNext reports whether a step after i leaves room before the next reduction.
func (p *Program) roomBeforeNext(i int) bool {
	for j := i + 1; j < len(p.Steps) && !p.Steps[j].reduces(); j++ {
		if p.Steps[j].leavesRoom() {
			return true
		}
	}
	return false
}

// leavesRoom reports whether what runs beside s has multiprocessors for long enough; attention that a backward makes again is a
// third of its backward, which follows.
func (s *Step) leavesRoom() bool {
	return s.Kind == Recv || s.Kind == Compute && (s.Node.Op.Name == "attention_backward" || s.Node.Op.Name == "attention" && s.Node.Phase == graph.Forward)
}

// relive places what lives anew, after steps have changed.
func (p *Program) relive() {
	(&builder{prog: p}).lifetimes()
	p.hold()
	p.ArenaBytes, p.WindowBytes = place(p.Slots), placeBySize(p.Windows)
}

// markAside finds the moves that can be Aside: the gathers that come earlier than they are, by the step that they come after,
// which is the gather before or makes something that one reads; the first step of all may be a gather itself.
func (p *Program) markAside() (early map[int]bool, after map[int][]int) {
	early, after = map[int]bool{}, map[int][]int{}
	made, before := map[*Slot]int{}, 0
	for i := range p.Steps {
		s := &p.Steps[i]
		s.Aside = s.gathers() || p.accumulates(i) > 0
		if s.gathers() {
			at := before
			for _, in := range s.In {
				at = max(at, made[in.Root()])
			}
			early[i], after[at] = true, append(after[at], i)
			before = i
		}
		for _, out := range s.Out {
			made[out.Root()] = i
		}
	}
	return early, after
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
