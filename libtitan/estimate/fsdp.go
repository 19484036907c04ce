package estimate

// fsdpTime is what FSDP costs a step beyond the work: casts and copies, what of its collectives no work hides, and what
// they slow down the work that hides them. The next unit is gathered, and the last one reduced, beside the work of this
// one. Where nothing is wrapped, autocast casts the weights: read 4, written 2.
func (j *Job) fsdpTime(m *Machine, l *load) (worst float64) {
	if !j.wrapped() {
		if j.Compute == "float32" {
			return 0
		}
		return float64(j.Passes*j.NumMicrobatches) * m.stream(6*l.weights)
	}
	for _, r := range l.kinds {
		worst = max(worst, j.fsdpRank(m, r))
	}
	return worst
}

// fsdpRank is fsdpTime of one pipeline rank.
func (j *Job) fsdpRank(m *Machine, r rankLoad) float64 {
	shards, replicas := j.fsdpGroup(), j.replicaGroup()
	units := max(1, r.weights/(j.layerParams()/j.tp()))
	unit := r.weights / units
	gather := units * m.gather(shards, j.computeBytes()*unit)
	reduce := units * (m.scatter(shards, gradBytes*unit) + m.reduce(replicas, gradBytes*unit/float64(shards.size)))
	cost := m.costs()
	again, traffic := gather, cost.gathered+cost.again
	if j.Keep {
		again, traffic = 0, cost.gathered
	}
	if j.Compute != "float32" {
		traffic += cost.cast / float64(shards.size)
	}
	passes := 1.0 // with pp, the gradients of all microbatches are reduced together
	if j.Dims.PP == 1 {
		passes = float64(j.Passes * j.NumMicrobatches)
	}
	ends := (gather + reduce) / units // the first gather and the last reduction
	return passes * (m.stream(r.weights*traffic) + ends + m.exposed(gather, r.forward) + m.exposed(again+reduce, r.backward))
}

// exposed is what collectives beside work add to it.
func (m *Machine) exposed(collectives, work float64) float64 {
	if m.Shared() { // there is nothing beside
		return collectives
	}
	return max(0, collectives-work) + contention*min(collectives, work)
}
