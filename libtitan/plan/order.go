package plan

import "titan/libtitan/pipeline"

// inOrder puts the weight gradients of each stage in the order of its microbatches, whatever the schedule: that is
// the order in which they are summed. Where a backward comes too early it becomes the input's alone, and its
// weights' follows as soon as those before it are done.
func inOrder(actions []pipeline.Action) []pipeline.Action {
	next := map[int]int{} // by stage: the microbatch whose weights' gradient is due
	early := map[pipeline.Action]bool{}
	var out []pipeline.Action
	done := func(stage int) {
		for next[stage]++; ; next[stage]++ {
			w := pipeline.Action{Stage: stage, Kind: pipeline.WeightGrad, Microbatch: next[stage]}
			if !early[w] {
				return
			}
			out = append(out, w)
		}
	}
	for _, a := range actions {
		a.WithNext = false
		isB, isW := a.Kind == pipeline.Backward, a.Kind == pipeline.WeightGrad
		switch {
		case !isB && !isW:
			out = append(out, a)
		case a.Microbatch == next[a.Stage]:
			out = append(out, a)
			done(a.Stage)
		default:
			early[pipeline.Action{Stage: a.Stage, Kind: pipeline.WeightGrad, Microbatch: a.Microbatch}] = true
			if isB {
				a.Kind = pipeline.InputGrad
				out = append(out, a)
			}
		}
	}
	return out
}
