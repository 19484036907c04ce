package plan

import "slices"

// SumInProducts has products make the sums that they are terms of: where an add's inputs are results of products that
// nothing else reads, and at most one value that is there before, the first product adds to that value and each other one to
// what the ones before made. In bfloat16 a sum is rounded after each term then, and what is added is not rounded before.
func (p *Program) SumInProducts() {
	s := summer{p: p, made: map[*Slot]int{}, readers: map[*Slot]int{}}
	for i := range p.Steps {
		for _, out := range p.Steps[i].Out {
			s.made[out] = i
		}
		for _, in := range p.Steps[i].In {
			s.readers[in.Root()]++
		}
	}
	steps := make([]Step, 0, len(p.Steps))
	var sums []int
	for i := range p.Steps {
		if s.sum(&p.Steps[i]) {
			sums = append(sums, i)
		}
	}
	for i := range p.Steps {
		if !slices.Contains(sums, i) {
			steps = append(steps, p.Steps[i])
		}
	}
	p.Steps = steps
	p.relive()
}

type summer struct {
	p       *Program
	made    map[*Slot]int // by which step
	readers map[*Slot]int
}

// sum gives an add to the products that make its terms, if it can.
func (s *summer) sum(add *Step) bool {
	if add.Kind != Compute || add.Node.Op.Name != "add" || add.Add[0] || add.Out[0].Class != Arena {
		return false
	}
	var products []int
	var first *Slot
	for _, in := range add.In {
		switch i, ok := s.made[in]; {
		case ok && s.product(in, i) && !slices.Contains(products, i):
			products = append(products, i)
		case first == nil && in.DType == add.Out[0].DType:
			first = in
		default:
			return false
		}
	}
	if len(products) == 0 {
		return false
	}
	slices.Sort(products)
	if first != nil && s.made[first] >= products[0] {
		return false // it is not there yet
	}
	for k, i := range products {
		step := &s.p.Steps[i]
		step.Out[0] = add.Out[0]
		step.Add = []bool{k > 0}
		if k == 0 && first != nil {
			step.In = append(step.In, first)
		}
	}
	s.made[add.Out[0]] = products[len(products)-1]
	return true
}

// product reports whether step i makes in as a product, for the sum alone, and in memory of its own.
func (s *summer) product(in *Slot, i int) bool {
	step := &s.p.Steps[i]
	return step.Kind == Compute && step.Node.Op.Name == "einsum" && len(step.In) == 2 && step.Out[0] == in &&
		in.Of == nil && in.Class == Arena && s.readers[in] == 1
}
