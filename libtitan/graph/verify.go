package graph

// Verify checks that g is well formed: nodes read only what stands before them, a forward node reads nothing
// of the backward, and every result has the type that its op's rule gives.
func (g *Graph) Verify() error {
	seen := map[*Value]bool{}
	for i, n := range g.Nodes {
		if n.ID != i {
			return n.errorf("node %d stands at position %d", n.ID, i)
		}
		for _, v := range n.In {
			if !seen[v] {
				return n.errorf("reads %%%d before it is made", v.ID)
			}
			if v.Node.Phase > n.Phase {
				return n.errorf("a %v node reads %%%d of the %v", n.Phase, v.ID, v.Node.Phase)
			}
		}
		if err := n.checkTypes(); err != nil {
			return err
		}
		for _, v := range n.Results {
			seen[v] = true
		}
	}
	return nil
}

// checkTypes holds n's results against its op's rule.
func (n *Node) checkTypes() error {
	if n.Op == ParamOp || n.Op == InputOp {
		return nil
	}
	types, err := infer(n)
	if err != nil {
		return err
	}
	for k, t := range types {
		if v := n.Results[k]; t.String() != v.Type.String() {
			return n.errorf("result %d is %v, its rule gives %v", k, v.Type, t)
		}
	}
	return nil
}
