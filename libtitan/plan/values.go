package plan

import (
	"cmp"
	"slices"

	"titan/libtitan/alloc"
	"titan/libtitan/graph"
	"titan/libtitan/op"
)

// The streams of a rank whose moves run beside what is computed, by number.
const (
	ComputeStream alloc.Stream = iota
	GatherStream               // FSDP's gathers
	ReduceStream               // and reductions
	MoveStream                 // other collectives
	StageStream                // between stages
)

// Keeper is where values lie while a program runs.
type Keeper interface {
	Owns(s *Slot) bool // whether it is told of s: of the others somebody else takes care
	Take(s *Slot, owner string) error
	Drop(s *Slot) error
	Use(s *Slot, on alloc.Stream)    // by a move on another stream than ComputeStream
	Wait(on alloc.Stream, later int) // as alloc.Allocator.Wait, by ComputeStream
	End()                            // of a run of the program: the host waits for all of it
}

// Values follows the steps of a program: each value is taken where it is first touched and dropped where it
// is last, moves use their values on streams of their own, and what they make is waited for where it is read.
type Values struct {
	prog        *Program
	keep        Keeper
	oneStream   bool
	first, last [][]*Slot // by step
	flights     map[*Slot][]flight
	uses        map[alloc.Stream]int // how many there were
	waited      map[alloc.Stream]int // how many of them are waited for
	newest      map[alloc.Stream]int // the step of the newest move
}

// flight is a move under way that uses a value.
type flight struct {
	step   int
	stream alloc.Stream
	uses   int // on its stream, up to and with its own
	writes bool
}

// Follow prepares to follow prog; with oneStream everything runs on ComputeStream.
func Follow(prog *Program, keep Keeper, oneStream bool) *Values {
	v := &Values{prog: prog, keep: keep, oneStream: oneStream, first: make([][]*Slot, len(prog.Steps)), last: make([][]*Slot, len(prog.Steps))}
	for _, s := range slices.Concat(prog.Slots, prog.Windows) {
		if keep.Owns(s) {
			v.first[s.First], v.last[s.Last] = append(v.first[s.First], s), append(v.last[s.Last], s)
		}
	}
	v.flights, v.uses, v.waited, v.newest = map[*Slot][]flight{}, map[alloc.Stream]int{}, map[alloc.Stream]int{}, map[alloc.Stream]int{}
	return v
}

// Stream is where step i runs.
func (v *Values) Stream(i int) alloc.Stream {
	if v.oneStream {
		return ComputeStream
	}
	return v.prog.Steps[i].beside()
}

func (s *Step) beside() alloc.Stream {
	if s.Kind == Send || s.Kind == Recv {
		return StageStream
	}
	if s.Kind == Accumulate {
		return ComputeStream
	}
	_, moves := s.Node.Attr.(op.MoveAttr)
	switch what := op.Move(s.Node.Op.Name); {
	case !moves || what == op.Slice || what == op.Mask:
		return ComputeStream
	case s.Aside && what == op.AllGather:
		return GatherStream
	case s.Aside:
		return ReduceStream
	}
	return MoveStream
}

// Begin takes what step i touches first. It returns the earlier steps, moves all, that ComputeStream must wait for before it;
// step i, wherever it runs, comes after what ComputeStream has done.
func (v *Values) Begin(i int) (after []int, err error) {
	st := &v.prog.Steps[i]
	for _, x := range [][]*Slot{st.In, st.Out} {
		for _, s := range x {
			after = v.land(s.Root(), slices.Contains(st.Out, s), after)
		}
	}
	for _, s := range v.first[i] {
		if err := v.keep.Take(s, st.owner(s)); err != nil {
			return nil, err
		}
	}
	return after, nil
}

// land waits for the moves that make s, and if s is to be written for those that read it.
func (v *Values) land(s *Slot, write bool, after []int) []int {
	for _, f := range v.flights[s] {
		if v.waited[f.stream] >= f.uses || !write && !f.writes {
			continue
		}
		v.waited[f.stream] = f.uses
		v.keep.Wait(f.stream, v.uses[f.stream]-f.uses)
		after = append(after, f.step)
	}
	return after
}

// End notes what step i, a move that was put on its stream, uses, and drops what it touches last.
func (v *Values) End(i int) error {
	if on := v.Stream(i); on != ComputeStream {
		v.depart(i, on)
	}
	for _, s := range v.last[i] {
		delete(v.flights, s)
		if err := v.keep.Drop(s); err != nil {
			return err
		}
	}
	return nil
}

func (v *Values) depart(i int, on alloc.Stream) {
	st := &v.prog.Steps[i]
	var used []*Slot
	for _, s := range slices.Concat(st.In, st.Out, []*Slot{st.Scratch}) {
		if s != nil && s.Root().planned() && v.keep.Owns(s.Root()) && !slices.Contains(used, s.Root()) {
			used = append(used, s.Root())
			v.keep.Use(s.Root(), on)
			v.uses[on]++
		}
	}
	v.newest[on] = i
	for _, s := range st.In {
		v.fly(s, flight{i, on, v.uses[on], false})
	}
	for _, s := range st.Out {
		v.fly(s, flight{i, on, v.uses[on], true})
	}
}

// fly notes a move of a value; parameters do not change meanwhile.
func (v *Values) fly(s *Slot, f flight) {
	if s.Root().Class != Param {
		v.flights[s.Root()] = append(v.flights[s.Root()], f)
	}
}

// Join has ComputeStream wait for all moves, at the program's end. It returns the last step of each other stream.
func (v *Values) Join() (after []int) {
	for on := GatherStream; on <= StageStream; on++ {
		if v.waited[on] < v.uses[on] {
			after = append(after, v.newest[on])
			v.keep.Wait(on, 0)
		}
	}
	clear(v.flights)
	clear(v.uses)
	clear(v.waited)
	v.keep.End()
	return after
}

// owner is who takes s in the step: the op, its module, and the part of the program; memprof takes them apart.
func (s *Step) owner(of *Slot) string {
	if of.Class == Grad || of.Class == Rows {
		return of.gradOwner()
	}
	what, backward := [...]string{"", "accumulate", "send", "recv"}[s.Kind], s.Tag.Backward
	if s.Kind == Compute {
		what, backward = s.Node.Op.Name, s.Node.Phase == graph.Backward
	}
	part := "forward"
	if backward {
		part = "backward"
	}
	if of == s.Scratch {
		what += ", packing"
	}
	return Owner(what, cmp.Or(of.FQN, "loss"), part)
}

// gradOwner is who has the memory of a gradient.
func (s *Slot) gradOwner() string { return s.Name + " < gradients" }

// Owner joins the parts of an owner's name, the innermost first.
func Owner(what, fqn, part string) string { return what + " < " + fqn + " < " + part }

// Fixture is memory that lives as long as a rank trains.
type Fixture struct {
	Owner string
	Bytes int
}

// Fixed lists it in the order in which a GPU takes it: of each parameter itself and AdamW's two moments, all float32; their
// copies that are computed with; the constants; and, unless the arena has them, the gradients, as the step makes them.
func (p *Program) Fixed() (out []Fixture) {
	add := func(owner string, bytes int) { out = append(out, Fixture{owner, bytes}) }
	for _, st := range p.Stages {
		for i, v := range st.Params {
			bytes := p.local(v).Bytes()
			add(v.Name()+" < parameters", bytes)
			if i < len(st.Grads) {
				add(v.Name()+" < optimizer", bytes)
				add(v.Name()+" < optimizer", bytes)
			}
		}
	}
	for i := range p.Copies {
		for _, s := range p.Copies[i].Out {
			if all := s.Root(); all.Named()[0] == s {
				add(CopyOwner(all), all.Bytes())
			}
		}
	}
	if p.ConstBytes > 0 {
		add("constants", p.ConstBytes)
	}
	if p.GradsInArena {
		return out
	}
	grads, _ := p.gradSlots()
	for _, s := range grads {
		add(s.gradOwner(), s.Bytes())
	}
	return out
}
