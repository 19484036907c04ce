// Package graph holds a model as a graph of logical values: whole-model shapes, no word of how they are laid
// out over devices. [Trace] runs a model's Forward and records it; passes rewrite the result.
package graph

import (
	"fmt"
	"strings"

	"titan/libtitan/dtype"
	"titan/libtitan/placement"
	"titan/libtitan/scalar"
)

// Phase says in which part of a step a node runs.
type Phase uint8

// The phases, in the order in which they run.
const (
	Forward Phase = iota
	Backward
)

func (p Phase) String() string { return [...]string{"fwd", "bwd"}[p] }

// Type is what is known of a value before it is computed.
type Type struct {
	DType dtype.DType
	Shape []int
}

// NumElements is the number of elements of t; 1 for a scalar.
func (t Type) NumElements() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Bytes is the size of t stored densely.
func (t Type) Bytes() int { return t.NumElements() * t.DType.Size() }

func (t Type) String() string {
	return t.DType.String() + strings.ReplaceAll(fmt.Sprint(t.Shape), " ", ",")
}

// Value is one logical tensor: result Out of Node. Layout is how it lies on the mesh, once the graph is sharded.
type Value struct {
	Type
	Layout placement.Layout
	ID     int // unique in its graph
	Node   *Node
	Out    int
}

// Node is one application of an op, made under a module's FQN.
type Node struct {
	ID      int // position in Graph.Nodes
	Op      *Op
	Attr    any // the op's settings, a comparable struct; nil if it has none
	In      []*Value
	Results []*Value
	FQN     string
	Phase   Phase
}

// Op is an operation as data.
type Op struct {
	Name string
	// Rule is the index notation of the node's inputs and results, "bsk,nk->bsn": equal letters are equal
	// sizes, a letter absent from a result is summed over. Shapes are checked by it, and layouts follow it.
	Rule func(n *Node) string
	// Sizes gives the letters that no input has; nil when there are none.
	Sizes func(n *Node) map[byte]int
	// Cut lists the letters along which the work may be cut over ranks: each rank computes its part of them, and
	// a result that lacks the letter is a partial sum. Letters of one group are cut together.
	Cut func(n *Node) []string
	// DTypes gives the element type of each result; nil: that of the first input for all.
	DTypes func(n *Node) []dtype.DType
	// VJP makes the gradients of the inputs from those of the results (nil where a result has none), one for
	// each input, nil for an input that has none. Nil: the op has no gradient.
	VJP func(g *Graph, n *Node, d []*Value) []*Value
	// Scalar is what the op does to one element of rows of its last dim, if that is all it does: a step of a kernel that
	// may do more. in are its inputs' values; it returns those of its results. Nil: the op is a kernel of its own.
	Scalar func(n *Node, b *scalar.Builder, in []scalar.Value) []scalar.Value
	// Eval is the reference, in float64.
	Eval func(n *Node, in []Array) []Array
	// View: result 0 is the bytes of input 0 under another shape.
	View bool
	// InPlace: kernels may write result 0 where input 0 lies.
	InPlace bool
	// CanAdd: kernels can add into results that are a parameter's gradient, in place of overwriting them.
	CanAdd bool
}

// Array is a tensor of the float64 reference; integers are held as floats.
type Array struct {
	Shape []int
	Data  []float64
}

// NewArray makes a zero array.
func NewArray(shape ...int) Array {
	return Array{shape, make([]float64, Type{Shape: shape}.NumElements())}
}

// Graph is a list of nodes, each after those it reads.
type Graph struct {
	Nodes   []*Node
	Compute dtype.DType // of parameters where they are used: mixed precision casts there
	phase   Phase
	scope   []string
	params  map[string]*Value
	ids     int
}

// Error is a model that does not fit together; building a graph panics with it and [Trace] recovers it.
type Error struct {
	FQN, Op, What string
}

func (e *Error) Error() string {
	return fmt.Sprintf("graph: %s: %s: %s", strings.TrimSuffix("module "+e.FQN, "module "), e.Op, e.What)
}

// ExitCode is 3: the model's dimensions are bad input.
func (e *Error) ExitCode() int { return 3 }

// Trace runs build on a new graph and returns what it recorded, or the *[Error] it stopped with.
// Parameters are used in the element type compute.
func Trace(compute dtype.DType, build func(g *Graph)) (g *Graph, err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case *Error:
			g, err = nil, r
		default:
			panic(r)
		}
	}()
	g = &Graph{Compute: compute, params: map[string]*Value{}}
	build(g)
	return g, g.Verify()
}

// Scope puts what follows under the module name, until the returned function is called.
func (g *Graph) Scope(name string) (end func()) {
	g.scope = append(g.scope, name)
	return func() { g.scope = g.scope[:len(g.scope)-1] }
}

// In makes f's nodes in phase p under the FQN scope.
func (g *Graph) In(p Phase, scope string, f func()) {
	phase, old := g.phase, g.scope
	g.phase, g.scope = p, nil
	if scope != "" {
		g.scope = []string{scope}
	}
	f()
	g.phase, g.scope = phase, old
}

// Add appends an application of op and returns its results.
func (g *Graph) Add(op *Op, attr any, in ...*Value) []*Value {
	n := &Node{ID: len(g.Nodes), Op: op, Attr: attr, In: in, FQN: strings.Join(g.scope, "."), Phase: g.phase}
	types, err := infer(n)
	if err != nil {
		panic(err)
	}
	for i, t := range types {
		n.Results = append(n.Results, &Value{Type: t, ID: g.ids, Node: n, Out: i})
		g.ids++
	}
	g.Nodes = append(g.Nodes, n)
	return n.Results
}

// Source is the attribute of a node without inputs: a parameter, or a value given from outside.
type Source struct {
	Name  string // a parameter's FQN, an input's name
	DType dtype.DType
	Shape string // as fmt.Sprint writes it, so that Source stays comparable
}

// The ops of values that come from outside the graph. Parameters are float32, as they are stored.
var (
	ParamOp = &Op{Name: "param"}
	InputOp = &Op{Name: "input"}
)

func (g *Graph) source(op *Op, name string, t Type) *Value {
	n := &Node{ID: len(g.Nodes), Op: op, Attr: Source{name, t.DType, fmt.Sprint(t.Shape)}, FQN: name, Phase: g.phase}
	n.Results = []*Value{{Type: t, ID: g.ids, Node: n}}
	g.ids++
	g.Nodes = append(g.Nodes, n)
	return n.Results[0]
}

// Param is the stored parameter fqn; asking twice gives one value.
func (g *Graph) Param(fqn string, shape []int64) *Value {
	if v := g.params[fqn]; v != nil {
		return v
	}
	t := Type{DType: dtype.Float32}
	for _, d := range shape {
		t.Shape = append(t.Shape, int(d))
	}
	g.params[fqn] = g.source(ParamOp, fqn, t)
	return g.params[fqn]
}

// Input is a value given from outside under a name.
func (g *Graph) Input(name string, t Type) *Value { return g.source(InputOp, name, t) }

// Params lists the parameters in the order of their first use.
func (g *Graph) Params() []*Value {
	var out []*Value
	for _, n := range g.Nodes {
		if n.Op == ParamOp {
			out = append(out, n.Results[0])
		}
	}
	return out
}

// Phase is the phase of the nodes that are added now.
func (g *Graph) Phase() Phase { return g.phase }

// Renew makes an empty graph that n's nodes can be copied into.
func (g *Graph) Renew() *Graph {
	return &Graph{Compute: g.Compute, params: map[string]*Value{}}
}

// Copy appends n with other inputs and returns the results; a parameter that is there already is returned.
func (g *Graph) Copy(n *Node, in []*Value) []*Value {
	v := n.Results[0]
	switch n.Op {
	case ParamOp:
		shape := make([]int64, len(v.Shape))
		for i, d := range v.Shape {
			shape[i] = int64(d)
		}
		return []*Value{g.Param(v.Name(), shape)}
	case InputOp:
		return []*Value{g.Input(v.Name(), v.Type)}
	}
	return g.Add(n.Op, n.Attr, in...)
}

// Name is the name of a parameter or input, "" for a computed value.
func (v *Value) Name() string {
	if s, ok := v.Node.Attr.(Source); ok {
		return s.Name
	}
	return ""
}
