package scalar

import "slices"

// Summed is p where the inputs at these places are one, at the first place, which is their sum. ok is false if p makes anything of
// them but that sum.
func (p *Program) Summed(places []int) (summed *Program, ok bool) {
	open, closed, sum := map[int]bool{}, map[int]bool{}, 0
	for _, i := range places {
		open[p.In[i].Value] = true
	}
	for i, s := range p.Steps {
		if slices.ContainsFunc(s.Args, func(a int) bool { return closed[a] }) {
			return nil, false
		}
		if len(open) == 1 || !slices.ContainsFunc(s.Args, func(a int) bool { return open[a] }) {
			continue
		}
		if s.Code != Add || s.Args[0] == s.Args[1] || !open[s.Args[0]] || !open[s.Args[1]] {
			return nil, false
		}
		for _, a := range s.Args {
			delete(open, a)
			closed[a] = true
		}
		open[i], sum = true, i
	}
	if len(open) > 1 || slices.ContainsFunc(p.Out, func(o Port) bool { return closed[o.Value] }) {
		return nil, false
	}
	return p.without(places, sum), true
}

// without is p without the inputs at these places but the first, which is what step sum was.
func (p *Program) without(places []int, sum int) *Program {
	first := p.In[places[0]].Value
	now := func(v int) int {
		if v == sum {
			return first
		}
		return v
	}
	var b Builder
	for _, s := range p.Steps {
		s.Args = slices.Clone(s.Args)
		for i, a := range s.Args {
			s.Args[i] = now(a)
		}
		b.p.Steps = append(b.p.Steps, s)
	}
	for i, o := range p.In {
		if slices.Contains(places[1:], i) {
			b.p.Steps[o.Value] = Step{Code: Const, Kind: One} // which nothing needs
			continue
		}
		b.p.In = append(b.p.In, o)
	}
	for _, o := range p.Out {
		o.Value = now(o.Value)
		b.p.Out = append(b.p.Out, o)
	}
	return b.Program()
}
