// Package plan lays a rank's whole optimizer step out in advance: which node runs when, for which microbatch,
// which values cross to other ranks, and where in one arena every value lies. [Build] makes a [Program]; running
// it takes no further decision.
package plan

import (
	"fmt"

	"titan/libtitan/graph"
	"titan/libtitan/pipeline"
	"titan/libtitan/placement"
)

// Stage is the graph of one pipeline stage on one microbatch, with the roles of its values.
type Stage struct {
	Index  int
	Graph  *graph.Graph
	In     *graph.Value   // tokens on the first stage, else the hidden state that arrives
	Labels *graph.Value   // last stage only, as are
	Scale  *graph.Value   // the gradient of the summed loss: 1/number of labels in the step
	Out    *graph.Value   // the hidden state that leaves, or the summed loss
	DOut   *graph.Value   // the gradient of Out that arrives; nil on the last stage
	DIn    *graph.Value   // the gradient of In that leaves; nil on the first stage
	Params []*graph.Value // with their
	Grads  []*graph.Value // gradients, float32
}

// After is s after a pass that made g and gave its values the successors that to knows.
func (s *Stage) After(g *graph.Graph, to func(v *graph.Value) *graph.Value) *Stage {
	now := &Stage{Index: s.Index, Graph: g, In: to(s.In), Labels: to(s.Labels), Scale: to(s.Scale), Out: to(s.Out), DOut: to(s.DOut), DIn: to(s.DIn)}
	for i := range s.Params {
		now.Params, now.Grads = append(now.Params, to(s.Params[i])), append(now.Grads, to(s.Grads[i]))
	}
	return now
}

// Class says where a value's memory comes from.
type Class uint8

// The classes of memory.
const (
	Arena   Class = iota // planned: at an offset, while it is live
	Param                // a stored parameter, by name
	Grad                 // a parameter's gradient, by name, summed over the step's microbatches
	Const                // computed once, when the program is loaded
	Copy                 // a parameter in another type, by name, kept from step to step
	Largest              // a parameter's largest magnitude, by name, kept likewise
	Tokens               // of one microbatch
	Labels               // of one microbatch
	Scale                // one scalar a step
	Loss                 // one scalar a microbatch
	Window               // planned: at an offset of the windows, the same on all ranks that gather together
	Rows                 // where the rows of a gradient by rows lie, by name: see [Program.GradsByRows]
	NumClasses
)

func (c Class) String() string {
	return [...]string{"activations", "params", "grads", "constants", "copies", "largest magnitudes", "tokens", "labels", "scale", "loss", "windows", "rows of grads"}[c]
}

// Slot is a value's place in memory: Type is of what this rank holds of it.
type Slot struct {
	graph.Type
	Class      Class
	At         []placement.Range // what of the logical value this rank holds, by dim
	Logical    []int             // the logical value's shape
	Name       string            // of a parameter, its gradient, copy or largest magnitude
	FQN        string            // of the module whose node made it
	Microbatch int
	Of         *Slot   // of a view: whose memory it is; nil: its own
	Start      int     // of a view: bytes from the start of that
	Stride     int     // of a view that is columns of a matrix: elements from a row of that to the next; else 0
	Parts      []*Slot // of what JoinProducts joined: the views that it is made of, in order
	Offset     int     // bytes from the start of the arena, of the windows or of the constants
	First      int     // the steps between which it is live, both included
	Last       int
}

// Root is the slot whose memory s is.
func (s *Slot) Root() *Slot {
	if s.Of != nil {
		return s.Of
	}
	return s
}

// Named are the slots by whose names s is known: itself, or its parts.
func (s *Slot) Named() []*Slot {
	if s.Parts != nil {
		return s.Parts
	}
	return []*Slot{s}
}

// planned reports whether the plan says when s lives.
func (s *Slot) planned() bool { return s.Class == Arena || s.Class == Window }

// Kind is what a step does.
type Kind uint8

// The kinds of steps.
const (
	Compute    Kind = iota // run Node from In to Out
	Accumulate             // Out[0] += In[0], or = In[0] where Add is not set
	Send                   // In[0] to Peer
	Recv                   // Out[0] from Peer
)

// Step is one thing that a rank does.
type Step struct {
	Kind     Kind
	Node     *graph.Node
	In, Out  []*Slot
	Add      []bool          // per result: add into Out rather than overwrite it
	Scratch  *Slot           // bytes to work in; nil: none
	Peer     int             // pp rank, of Send and Recv
	Action   pipeline.Action // that the step belongs to
	Prologue bool            // once a step, before the actions
	Aside    bool            // a move that may run beside what follows, up to the first use of its results
	Tag      Tag
}

// Tag names a message between stages.
type Tag struct {
	Stage, Microbatch int
	Backward          bool // a gradient
}

// Program is everything that one rank does in an optimizer step.
type Program struct {
	Where
	Stages       []*Stage // that it holds
	Constants    []Step   // run once, at load
	Copies       []Step   // run at load, and when parameters are changed from outside; by KeepCopies
	Steps        []Step
	Slots        []*Slot // all arena slots, in order of First
	Windows      []*Slot // what is gathered by PlaceWindows, in order of First
	ArenaBytes   int
	WindowBytes  int
	ConstBytes   int
	GradsInArena bool // by PlaceGrads
	LossApart    bool // the loss and its gradient are two kernels, also where one could make both
}

// align is the granule of arena offsets: a cache line, and a vector register.
const align = 64

// Where is a rank's place: its pipeline rank, and its coordinates on the mesh of a stage.
type Where struct {
	PP    int
	Mesh  placement.Mesh
	Coord placement.Coord
}

// Build lays out the actions of one rank. stageRank tells which pp rank holds a stage.
func Build(at Where, stages []*Stage, actions []pipeline.Action, stageRank []int) (*Program, error) {
	b := &builder{
		prog:      &Program{Where: at, Stages: stages},
		stageRank: stageRank,
		slots:     map[key]*Slot{},
		nodes:     map[*graph.Node]nodeKind{},
		grads:     map[*graph.Value]string{},
		sums:      map[string]*Slot{},
		started:   map[string]bool{},
		inputGrad: map[*Stage]map[*graph.Node]bool{},
	}
	for _, s := range stages {
		b.sortNodes(s)
	}
	for _, a := range inOrder(actions) {
		if err := b.action(a); err != nil {
			return nil, err
		}
	}
	b.lifetimes()
	b.prog.ArenaBytes = place(b.prog.Slots)
	return b.prog, nil
}

// local is a slot of what this rank holds of v.
func (p *Program) local(v *graph.Value) *Slot {
	s := &Slot{Type: graph.Type{DType: v.DType, Shape: make([]int, len(v.Shape))}}
	s.At, s.Logical = p.Mesh.Local(v.Shape, v.Layout, p.Coord), v.Shape
	for d, r := range s.At {
		s.Shape[d] = r.Len
	}
	return s
}

func (s *Step) String() string {
	switch s.Kind {
	case Send:
		return fmt.Sprintf("send %v to rank %d: %v", s.Action, s.Peer, s.In[0].Type)
	case Recv:
		return fmt.Sprintf("recv %v from rank %d: %v", s.Action, s.Peer, s.Out[0].Type)
	case Accumulate:
		if s.Out[0].Class == Window {
			return fmt.Sprintf("place %s: %v", s.In[0].Name, s.Out[0].Type)
		}
		return fmt.Sprintf("accumulate %s: %v", s.Out[0].Name, s.Out[0].Type)
	}
	return s.Node.String()
}
