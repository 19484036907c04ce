// Package parallel turns a manifest into what its ranks run: the model cut into stages, each traced and
// differentiated, and every rank's program. Start at [New].
package parallel

import (
	"titan/libtitan/dtype"
	"titan/libtitan/graph"
	"titan/libtitan/model/llama3"
	"titan/libtitan/op"
	"titan/libtitan/pass"
	"titan/libtitan/plan"
)

// shape is what a stage's microbatch looks like.
type shape struct {
	rows, seqLen, dim int
	compute           dtype.DType
}

// trace records the part of a model that is stage index of count: forward, and the backward that follows from it.
func trace(part *llama3.Decoder, index, count int, s shape, backward bool) (*plan.Stage, error) {
	st := &plan.Stage{Index: index}
	first, last := index == 0, index == count-1
	tokens := graph.Type{DType: dtype.Int32, Shape: []int{s.rows, s.seqLen}}
	hidden := graph.Type{DType: s.compute, Shape: []int{s.rows, s.seqLen, s.dim}}
	g, err := graph.Trace(s.compute, func(g *graph.Graph) {
		if first {
			st.In = g.Input("tokens", tokens)
		} else {
			st.In = g.Input("hidden", hidden)
		}
		st.Out = part.Forward(g, st.In)
		if last {
			st.Labels = g.Input("labels", tokens)
			st.Out = op.CrossEntropy(g, st.Out, st.Labels)
		}
	})
	if err != nil {
		return nil, err
	}
	st.Graph = g
	if !backward {
		return st, nil
	}
	var seed *graph.Value
	g.In(graph.Backward, "", func() { seed = g.Input("gradient", st.Out.Type) })
	if last {
		st.Scale = seed
	} else {
		st.DOut = seed
	}
	st.Params = g.Params()
	wrt := st.Params
	if !first {
		wrt = append([]*graph.Value{st.In}, wrt...)
	}
	grads, err := pass.Grad(g, st.Out, seed, wrt)
	if err != nil {
		return nil, err
	}
	if !first {
		st.DIn, grads = grads[0], grads[1:]
	}
	st.Grads = grads
	return st, nil
}
