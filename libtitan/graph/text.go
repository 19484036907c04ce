package graph

import (
	"fmt"
	"strings"
)

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
