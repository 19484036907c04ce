package plan

import (
	"cmp"
	"slices"
)

// Usage is the memory of a program over its steps, in bytes.
type Usage struct {
	Live      []int           // of the arena, at each step
	PeakBytes int             // the most of them
	PeakStep  int             // where
	Holders   []Holder        // who holds them there, the largest first
	Fixed     [NumClasses]int // what lives as long as the program, by class
}

// Holder is a module and what it holds.
type Holder struct {
	FQN    string
	Bytes  int
	Values int
}

// Measure adds up what prog holds.
func Measure(prog *Program) Usage {
	change := make([]int, len(prog.Steps)+1)
	for _, s := range prog.Slots {
		change[s.First] += roundUp(s.Bytes())
		change[s.Last+1] -= roundUp(s.Bytes())
	}
	u := Usage{Live: make([]int, len(prog.Steps))}
	live := 0
	for i := range u.Live {
		live += change[i]
		u.Live[i] = live
		if live > u.PeakBytes {
			u.PeakBytes, u.PeakStep = live, i
		}
	}
	u.Holders = holders(prog, u.PeakStep)
	u.Fixed[Const] = prog.ConstBytes
	for _, bytes := range prog.paramBytes() {
		u.Fixed[Param] += bytes
	}
	if grads, _ := prog.gradSlots(); !prog.GradsInArena {
		for _, s := range grads {
			u.Fixed[Grad] += s.Bytes()
		}
	}
	return u
}

// holders groups what is live at a step by module.
func holders(prog *Program, step int) []Holder {
	at := map[string]int{}
	var out []Holder
	for _, s := range prog.Slots {
		if step < s.First || s.Last < step {
			continue
		}
		i, ok := at[s.FQN]
		if !ok {
			i = len(out)
			at[s.FQN] = i
			out = append(out, Holder{FQN: s.FQN})
		}
		out[i].Bytes += roundUp(s.Bytes())
		out[i].Values++
	}
	slices.SortStableFunc(out, func(a, b Holder) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return out
}

// paramBytes is the size of each parameter that the program holds.
func (p *Program) paramBytes() map[string]int {
	out := map[string]int{}
	for _, st := range p.Stages {
		for _, v := range st.Params {
			out[v.Name()] = p.local(v).Bytes()
		}
	}
	return out
}
