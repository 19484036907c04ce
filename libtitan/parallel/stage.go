// Package parallel turns a manifest into what its ranks run: the model cut into stages, each traced and
// differentiated, and every rank's program. Start at [New].
package parallel

import (
	"strconv"
	"strings"

	"titan/libtitan/dtype"
	"titan/libtitan/graph"
	"titan/libtitan/manifest"
	"titan/libtitan/model/llama3"
	"titan/libtitan/op"
	"titan/libtitan/pass"
	"titan/libtitan/plan"
)

// shape is what a stage's microbatch looks like.
type shape struct {
	rows, seqLen, dim int
	compute           dtype.DType
	float8            *float8
}

// trace records the part of a model that is stage index of count: forward, and the backward that follows from it,
// on whole values.
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
	if s.float8 != nil {
		var to func(v *graph.Value) *graph.Value
		g, to = pass.Float8(g, s.float8.recipe, s.float8.converts, st.Out)
		st.In, st.Labels, st.Out = to(st.In), to(st.Labels), to(st.Out)
	}
	if st.Graph = g; backward {
		err = differentiate(st)
	}
	return st, err
}

// differentiate adds the backward of a stage: the gradients of its parameters, and of what came from the stage before.
func differentiate(st *plan.Stage) error {
	g := st.Graph
	var seed *graph.Value
	g.In(graph.Backward, "", func() { seed = g.Input("gradient", st.Out.Type) })
	if st.Labels != nil {
		st.Scale = seed
	} else {
		st.DOut = seed
	}
	st.Params = g.Params()
	grads, err := pass.Grad(g, st.Out, seed, append([]*graph.Value{st.In}, st.Params...))
	if err != nil {
		return err
	}
	st.DIn, st.Grads = grads[0], grads[1:] // tokens have none
	return nil
}

// shard lays a stage out over its mesh, and makes one collective of each unit's.
func shard(st *plan.Stage, s pass.Spread) (*plan.Stage, error) {
	between := []*graph.Value{st.DIn} // what goes to other stages lies as those have it
	if st.Labels == nil {
		between = append(between, st.Out) // else the loss: a sum of what the ranks have
	}
	var outs []pass.Out
	for _, v := range between {
		if v != nil {
			l := s.Value("hidden", v.Shape)
			outs = append(outs, pass.Out{Value: v, Layout: &l})
		}
	}
	for i, d := range st.Grads {
		if d != nil {
			outs = append(outs, pass.Out{Value: d, Param: st.Params[i].Name()})
		}
	}
	g, to, err := pass.Shard(st.Graph, s, outs)
	if err != nil {
		return nil, err
	}
	st = st.After(g, to)
	if g, to, err = pass.Bucket(st.Graph, st.Params, st.Grads, s.Unit); err != nil {
		return nil, err
	}
	return st.After(g, to), nil
}

// checkpoint makes the backward of a stage compute again what its layers do not save. norms says whether a norm's result
// is cheap to make again.
func checkpoint(st *plan.Stage, ac *manifest.ActivationCheckpoint, norms bool) *plan.Stage {
	if !recomputes(ac) || st.Params == nil {
		return st
	}
	return st.After(pass.Remat(st.Graph, saver(st.Graph, ac, norms)))
}

// recomputes reports whether time is to be given for memory.
func recomputes(ac *manifest.ActivationCheckpoint) bool { return ac != nil && ac.Mode != "none" }

// saver is what is saved by a kind of activation checkpointing.
func saver(g *graph.Graph, ac *manifest.ActivationCheckpoint, norms bool) func(n *graph.Node) bool {
	if ac.Option == "cheap" {
		cheap := pass.Cheap(g, norms)
		return func(n *graph.Node) bool { return !cheap(n) }
	}
	every, _ := strconv.Atoi(ac.Option)
	full := func(layer string) bool {
		i, _ := strconv.Atoi(strings.TrimPrefix(layer, "layers."))
		return ac.Mode == "full" || ac.Option != "op" && (every == 0 || (i+1)%every == 0)
	}
	perOp := func(string) bool { return ac.Mode == "selective" && ac.Option == "op" }
	return pass.Saver(g, full, perOp)
}
