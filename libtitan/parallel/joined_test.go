package parallel

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/manifest"
	"titan/libtitan/plan"
)

// Products are joined where layers read one x, and where what makes their results' gradients can write columns.
func TestJoinProductsAsks(t *testing.T) {
	joinedOf := func(change func(s *plan.Step)) (joined []string) {
		p := arrangedJob(t, manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1, EP: 1}, func(*manifest.Manifest) {})
		p.KeepCopies()
		p.SumInProducts()
		p.NarrowGrads()
		for i := range p.Steps {
			change(&p.Steps[i])
		}
		p.JoinProducts()
		for i := range p.Steps {
			if s := &p.Steps[i]; s.In[0].Parts != nil && s.Out[0].Parts != nil {
				joined = append(joined, s.Out[0].Name)
			}
		}
		return joined
	}
	q := []string{"layers.1.attention.wq.weight", "layers.0.attention.wq.weight"}
	require.Equal(t, q, joinedOf(func(*plan.Step) {}))
	require.Empty(t, joinedOf(func(s *plan.Step) {
		if s.Node.Op.Name == "rope" {
			n, other := *s.Node, *s.Node.Op
			other.Name, n.Op = "another", &other
			s.Node = &n
		}
	}), "what makes them writes no columns")
	require.Empty(t, joinedOf(func(s *plan.Step) {
		if s.Out[0].Class == plan.Grad && !slices.Contains(q, s.Out[0].Name) {
			x := *s.In[len(s.In)-1]
			s.In[len(s.In)-1] = &x
		}
	}), "they read other inputs")
}
