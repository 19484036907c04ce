package graph

import (
	"fmt"
	"strings"

	"titan/libtitan/dtype"
)

// infer gives the types of n's results by its op's rule, or an *Error that names the letter that disagrees.
func infer(n *Node) ([]Type, error) {
	fail := func(format string, args ...any) error {
		return &Error{n.FQN, n.Op.Name, fmt.Sprintf(format, args...)}
	}
	left, right, ok := strings.Cut(n.Op.Rule(n), "->")
	if !ok {
		return nil, fail("rule %q has no arrow", n.Op.Rule(n))
	}
	size := map[byte]int{}
	if n.Op.Sizes != nil {
		size = n.Op.Sizes(n)
	}
	terms := splitTerms(left, len(n.In))
	if len(terms) != len(n.In) {
		return nil, fail("%d inputs for rule %s", len(n.In), n.Op.Rule(n))
	}
	for i, term := range terms {
		if len(term) != len(n.In[i].Shape) {
			return nil, fail("input %d has shape %v, rule %s wants %d dims", i, n.In[i].Shape, n.Op.Rule(n), len(term))
		}
		for d := range len(term) {
			if have, ok := size[term[d]]; ok && have != n.In[i].Shape[d] {
				return nil, fail("input %d has shape %v, but %c is %d in rule %s", i, n.In[i].Shape, term[d], have, n.Op.Rule(n))
			}
			size[term[d]] = n.In[i].Shape[d]
		}
	}
	var dts []dtype.DType
	if n.Op.DTypes != nil {
		dts = n.Op.DTypes(n)
	}
	outs := strings.Split(right, ",")
	types := make([]Type, len(outs))
	for i, term := range outs {
		shape := make([]int, len(term))
		for d := range len(term) {
			shape[d], ok = size[term[d]]
			if !ok {
				return nil, fail("no size for %c in rule %s", term[d], n.Op.Rule(n))
			}
		}
		types[i].Shape = shape
		if dts != nil {
			types[i].DType = dts[i]
		} else {
			types[i].DType = n.In[0].DType
		}
	}
	return types, nil
}

// splitTerms gives the terms of a rule's inputs: of one scalar, too, nothing stands there.
func splitTerms(left string, inputs int) []string {
	if left == "" && inputs == 0 {
		return nil
	}
	return strings.Split(left, ",")
}

// Verify checks that g is well formed: nodes read only what stands before them, a forward node reads nothing
// of the backward, and every result has the type that its op's rule gives.
func (g *Graph) Verify() error {
	seen := map[*Value]bool{}
	for i, n := range g.Nodes {
		if n.ID != i {
			return &Error{n.FQN, n.Op.Name, fmt.Sprintf("node %d stands at position %d", n.ID, i)}
		}
		for _, v := range n.In {
			if !seen[v] {
				return &Error{n.FQN, n.Op.Name, fmt.Sprintf("reads %%%d before it is made", v.ID)}
			}
			if v.Node.Phase > n.Phase {
				return &Error{n.FQN, n.Op.Name, fmt.Sprintf("a %v node reads %%%d of the %v", n.Phase, v.ID, v.Node.Phase)}
			}
		}
		if n.Op != ParamOp && n.Op != InputOp {
			types, err := infer(n)
			if err != nil {
				return err
			}
			for k, t := range types {
				v := n.Results[k]
				if t.String() != v.Type.String() {
					return &Error{n.FQN, n.Op.Name, fmt.Sprintf("result %d is %v, its rule gives %v", k, v.Type, t)}
				}
			}
		}
		for _, v := range n.Results {
			seen[v] = true
		}
	}
	return nil
}

// String is the dump of a graph, one node a line.
func (g *Graph) String() string {
	var b strings.Builder
	for _, n := range g.Nodes {
		fmt.Fprintln(&b, n)
	}
	return b.String()
}

func (n *Node) String() string {
	var b strings.Builder
	for i, v := range n.Results {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%%%d %v", v.ID, v.Type)
		if l := v.Layout.String(); l != "R" {
			fmt.Fprintf(&b, " %s", l)
		}
	}
	fmt.Fprintf(&b, " = %s", n.Op.Name)
	if _, ok := n.Attr.(Source); !ok && n.Attr != nil {
		fmt.Fprintf(&b, "%+v", n.Attr)
	}
	for _, v := range n.In {
		fmt.Fprintf(&b, " %%%d", v.ID)
	}
	fmt.Fprintf(&b, "  %v %s", n.Phase, n.FQN)
	return b.String()
}
