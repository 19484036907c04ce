package parallel

import (
	"slices"

	"titan/libtitan/graph"
	"titan/libtitan/manifest"
	"titan/libtitan/pass"
	"titan/libtitan/plan"
)

// compiles reports whether m fuses a component: model, or loss. The loss is one kernel forward and backward by itself; only
// a compile section that is on and does not name it takes that away.
func compiles(m *manifest.Manifest, component string) bool {
	on := m.Compile != nil && m.Compile.Enable
	if component == "loss" && !on {
		return true
	}
	return on && slices.Contains(m.Compile.Components, component)
}

// fuse makes kernels of what a stage does element by element.
func fuse(st *plan.Stage) (*plan.Stage, pass.Fusion, error) {
	keep := slices.Concat(st.Params, st.Grads)
	for _, v := range []*graph.Value{st.In, st.Labels, st.Scale, st.Out, st.DOut, st.DIn} {
		if v != nil {
			keep = append(keep, v)
		}
	}
	g, to, did, err := pass.Fuse(st.Graph, keep...)
	if err != nil {
		return nil, did, err
	}
	return st.After(g, to), did, nil
}

// Fusion is what was fused in the stages laid out so far; nil where the model is not compiled.
func (j *Job) Fusion() *pass.Fusion {
	if !compiles(j.Manifest, "model") {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	all := &pass.Fusion{Kinds: map[string]pass.FusedKind{}}
	for _, f := range j.fusions {
		all.Add(f)
	}
	return all
}
