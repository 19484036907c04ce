package plan

import (
	"slices"
	"strings"

	"titan/libtitan/graph"
	"titan/libtitan/op"
	"titan/libtitan/placement"
)

// The rules of the two products of a linear layer's backward.
const (
	inputGradRule  = "bsn,nk->bsk" // dx = dy·W
	weightGradRule = "bsn,bsk->nk" // dW = dyᵀ·x
)

// writesColumns are the ops whose kernels on a GPU can write a result as columns of a wider matrix, by the results that they can. Attention
// under context parallelism cannot, where a weight's gradient is a sum over ranks, which no product makes alone. SwiGLU's backward could,
// but products for w1 and w3 are wide enough: one of both takes as long.
var writesColumns = map[string][]int{"rope": {0}, "attention_backward": {2}}

// JoinProducts makes one product of those that a backward does for the linear layers of queries, keys and values, which have one
// input x: with their results' gradients side by side, dy = [dy1 dy2 ...], and their weights one above the other,
// dx = dy1·W1 + dy2·W2 + ... = dy·W, written once and not once a term, and the weights' gradients, one above the other, are dyᵀ·x.
// So it is where weights are copies that are kept, gradients are made whole by these products, and what makes a dy can write it as
// columns. It comes after [Program.SumInProducts], which has the products make their sum; where a fused kernel would make it, with the
// norm that reads it, they do so here; and after [Program.NarrowGrads].
func (p *Program) JoinProducts() {
	u := p.usesOf()
	for i := range p.Steps {
		u.sumTerms(i)
	}
	u = p.usesOf()
	gone := map[int]bool{}
	for i := range p.Steps {
		if ls := u.linears(i); len(ls) > 1 {
			p.join(ls, gone)
		}
	}
	p.leaveOut(gone)
}

// leaveOut is p without some steps.
func (p *Program) leaveOut(gone map[int]bool) {
	var steps []Step
	for i := range p.Steps {
		if !gone[i] {
			steps = append(steps, p.Steps[i])
		}
	}
	p.Steps = steps
	p.relive()
}

// uses are the steps that write and read each memory, but for views, which do neither.
type uses struct {
	p      *Program
	writes map[*Slot][]int
	reads  map[*Slot][]int
}

func (p *Program) usesOf() uses {
	u := uses{p, map[*Slot][]int{}, map[*Slot][]int{}}
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Kind == Compute && s.Node.Op.View {
			continue
		}
		for _, in := range s.In {
			u.reads[in.Root()] = append(u.reads[in.Root()], i)
		}
		for _, out := range s.Out {
			u.writes[out.Root()] = append(u.writes[out.Root()], i)
		}
	}
	return u
}

// linear is the backward of a linear layer: its steps, and the memory of dy.
type linear struct {
	input, weight int
	dy            *Slot
}

// sumTerms has the products of layers that read one input, whose results a fused step i sums and nothing else reads, make that sum.
func (u uses) sumTerms(i int) {
	s := &u.p.Steps[i]
	if s.Kind != Compute {
		return
	}
	a, ok := s.Node.Attr.(op.FusedAttr)
	if !ok {
		return
	}
	var ls []linear
	var places []int
	for k, in := range s.In {
		if in.Class != Arena || in.Of != nil || len(u.writes[in]) != 1 || len(u.reads[in]) != 1 {
			continue
		}
		if l, ok := u.linear(u.writes[in][0]); ok && (len(ls) == 0 || u.p.alike(ls[0], l)) {
			ls, places = append(ls, l), append(places, k)
		}
	}
	if len(ls) < 2 {
		return
	}
	summed, ok := a.Summed(places)
	if !ok {
		return
	}
	dx := s.In[places[0]]
	n := *s.Node
	n.Attr, n.In, s.In = op.FusedAttr{Program: summed, Dims: a.Dims}, without(n.In, places[1:]), without(s.In, places[1:])
	s.Node = &n
	slices.SortFunc(ls, func(a, b linear) int { return a.input - b.input })
	for k, l := range ls {
		t := &u.p.Steps[l.input]
		t.Out, t.Add = []*Slot{dx}, []bool{k > 0}
	}
}

// without is all but what is at some places.
func without[T any](all []T, places []int) (left []T) {
	for i, x := range all {
		if !slices.Contains(places, i) {
			left = append(left, x)
		}
	}
	return left
}

// linears are the layers whose inputs' gradients are what step i writes first and what the next steps add to that.
func (u uses) linears(i int) (ls []linear) {
	if !u.p.Steps[i].multiplies(inputGradRule) {
		return nil
	}
	dx := u.p.Steps[i].Out[0]
	if dx.Class != Arena || dx.Of != nil || u.writes[dx][0] != i {
		return nil
	}
	for _, at := range u.writes[dx] {
		l, ok := u.linear(at)
		if !ok || u.p.Steps[at].Add[0] != (at != i) || len(ls) > 0 && !u.p.alike(ls[0], l) {
			break
		}
		ls = append(ls, l)
	}
	return ls
}

// linear finds the other product of a layer whose input's gradient step i makes or adds.
func (u uses) linear(i int) (linear, bool) {
	s := &u.p.Steps[i]
	if !s.multiplies(inputGradRule) || !s.In[1].joins() {
		return linear{}, false
	}
	dy := s.In[0].Root()
	if dy.Class != Arena || dy.Bytes() != s.In[0].Bytes() || len(u.writes[dy]) != 1 || len(u.reads[dy]) != 2 {
		return linear{}, false
	}
	l := linear{i, u.reads[dy][0], dy}
	if l.weight == i {
		l.weight = u.reads[dy][1]
	}
	return l, u.p.Steps[u.writes[dy][0]].writesColumns(dy) && u.makesAlone(l.weight)
}

// joins reports whether s is a copy of a weight after which another may begin, as columns may after its rows' results.
func (s *Slot) joins() bool {
	return s.Class == Copy && s.Bytes()%align == 0 && s.Shape[0]*s.DType.Size()%vector == 0
}

// makesAlone reports whether step i makes all of a weight's gradient.
func (u uses) makesAlone(i int) bool {
	s := &u.p.Steps[i]
	return s.multiplies(weightGradRule) && s.Out[0].Class == Grad && len(u.writes[s.Out[0]]) == 1
}

// multiplies reports whether s is a product by a rule, of bfloat16 numbers and without a further term.
func (s *Step) multiplies(rule string) bool {
	if s.Kind != Compute || len(s.In) != 2 || !s.multipliesNarrow() {
		return false
	}
	a, ok := s.Node.Attr.(op.EinsumAttr)
	return ok && a.Spec == rule
}

// writesColumns reports whether s can write a result as columns of a wider matrix.
func (s *Step) writesColumns(out *Slot) bool {
	return s.Kind == Compute && slices.Contains(writesColumns[s.Node.Op.Name], slices.Index(s.Out, out))
}

// alike reports whether two layers read one x and have matrices that fit side by side.
func (p *Program) alike(a, b linear) bool {
	wa, wb := &p.Steps[a.weight], &p.Steps[b.weight]
	return wa.In[1] == wb.In[1] && wa.Out[0].DType == wb.Out[0].DType && p.Steps[a.input].In[1].DType == p.Steps[b.input].In[1].DType
}

// join joins layers, in the order of their weights among the copies: the last product of each kind makes all.
func (p *Program) join(ls []linear, gone map[int]bool) {
	at := func(l linear) int {
		return slices.IndexFunc(p.Copies, func(s Step) bool { return s.Out[0] == p.Steps[l.input].In[1] })
	}
	slices.SortFunc(ls, func(a, b linear) int { return at(a) - at(b) })
	var dys, weights, grads []*Slot
	input, weight := 0, 0
	for _, l := range ls {
		dys, weights, grads = append(dys, l.dy), append(weights, p.Steps[l.input].In[1]), append(grads, p.Steps[l.weight].Out[0])
		input, weight = max(input, l.input), max(weight, l.weight)
		gone[l.input], gone[l.weight] = true, true
	}
	gone[input], gone[weight] = false, false
	width := 0
	for _, w := range weights {
		width += w.Shape[0]
	}
	dy := p.sideBySide(dys, p.Steps[input].In[0], width)
	p.Steps[input].multiply(dy, oneAboveTheOther(weights, width), p.Steps[input].Out[0])
	p.Steps[weight].multiply(dy, p.Steps[weight].In[1], oneAboveTheOther(grads, width))
}

// multiply has s make another product by its rule.
func (s *Step) multiply(a, b, out *Slot) {
	n := *s.Node
	n.FQN = n.FQN[:max(0, strings.LastIndexByte(n.FQN, '.'))]
	n.In = []*graph.Value{{Type: a.Type}, {Type: b.Type}}
	n.Results = []*graph.Value{{Type: out.Type, Node: &n}}
	s.Node, s.In, s.Out, s.Add = &n, []*Slot{a, b}, []*Slot{out}, []bool{false}
}

// sideBySide makes dys, and views of them, columns of one matrix, whose rows are like those of one that it is given.
func (p *Program) sideBySide(dys []*Slot, one *Slot, width int) *Slot {
	last := len(one.Shape) - 1
	all := &Slot{Type: graph.Type{DType: one.DType, Shape: slices.Clone(one.Shape)}, FQN: dys[0].FQN, Microbatch: one.Microbatch, Parts: dys}
	rows := one.NumElements() / one.Shape[last]
	all.Shape[last] = width
	all.At, all.Logical = slices.Clone(one.At), slices.Clone(all.Shape)
	all.At[last] = placement.Range{Len: width}
	starts, start := map[*Slot]int{}, 0
	for _, dy := range dys {
		starts[dy] = start
		start += dy.Bytes() / rows
	}
	for i := range p.Steps {
		for _, s := range slices.Concat(p.Steps[i].In, p.Steps[i].Out) {
			if at, ok := starts[s.Root()]; ok {
				s.Of, s.Start, s.Stride = all, at, width
			}
		}
	}
	p.Slots = append(p.Slots, all)
	return all
}

// oneAboveTheOther makes parts the rows of one matrix; it has the name of the first, where it begins.
func oneAboveTheOther(parts []*Slot, numRows int) *Slot {
	all := *parts[0]
	all.Shape, all.Logical, all.Parts = slices.Clone(all.Shape), slices.Clone(all.Shape), parts
	all.Shape[0], all.Logical[0] = numRows, numRows
	all.At = slices.Clone(all.At)
	all.At[0] = placement.Range{Len: numRows}
	start := 0
	for _, s := range parts {
		s.Of, s.Start = &all, start
		start += s.Bytes()
	}
	return &all
}
