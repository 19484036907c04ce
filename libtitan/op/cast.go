package op

import (
	"titan/libtitan/dtype"
	"titan/libtitan/graph"
	"titan/libtitan/scalar"
)

// CastAttr is the type that a cast gives.
type CastAttr struct{ To dtype.DType }

var castOp = &graph.Op{
	Name: "cast",
	Cut:  func(n *graph.Node) []string { return each(letters[:len(n.In[0].Shape)]) },
	Rule: func(n *graph.Node) string {
		l := letters[:len(n.In[0].Shape)]
		return l + "->" + l
	},
	DTypes: func(n *graph.Node) []dtype.DType { return []dtype.DType{n.Attr.(CastAttr).To} },
	VJP: func(g *graph.Graph, n *graph.Node, d []*graph.Value) []*graph.Value {
		if d[0].DType == n.In[0].DType {
			return d // made in that type already: see gradType
		}
		return g.Add(n.Op, CastAttr{n.In[0].DType}, d[0])
	},
	Scalar: func(n *graph.Node, b *scalar.Builder, in []scalar.Value) []scalar.Value {
		return []scalar.Value{b.Round(in[0], n.Attr.(CastAttr).To)}
	},
	Eval: func(n *graph.Node, in []graph.Array) []graph.Array { return in },
}

// Cast gives v in type to, rounding to nearest even; v itself if it has that type.
func Cast(g *graph.Graph, v *graph.Value, to dtype.DType) *graph.Value {
	if v.DType == to {
		return v
	}
	return g.Add(castOp, CastAttr{to}, v)[0]
}
