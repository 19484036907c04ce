package estimate

// group is the ranks that a collective joins: every stride-th of a run of neighbours.
type group struct{ size, stride int }

// The groups of a job, by torchtitan's order of the axes: tp fastest, then cp, dp_shard, dp_replicate, pp.
func (j *Job) tpGroup() group { return group{j.Dims.TP, 1} }
func (j *Job) cpGroup() group { return group{j.Dims.CP, j.Dims.TP} }
func (j *Job) fsdpGroup() group {
	return group{j.fsdp(), j.Dims.TP}
}
func (j *Job) replicaGroup() group {
	return group{j.Dims.DPReplicate, j.fsdp() * j.Dims.TP}
}

// local is the number of the group's ranks in one node.
func (g group) local(m *Machine) int {
	return max(1, min(g.size, m.GPUsPerNode/g.stride))
}

// link is the bytes a second at which a ring over the group passes data on, and the seconds until all have the first.
// Between nodes a ring is as wide as the group has GPUs, each with its own network card, in a node.
func (m *Machine) link(g group) (bandwidth, latency float64) {
	local := g.local(m)
	nodes := (g.size + local - 1) / local
	bandwidth = m.NodeGBps * 1e9 * nodeEfficiency * float64(local) / (float64(local) + nodeFew)
	if local == 1 {
		bandwidth = m.NetworkGBps * 1e9 * networkEfficiency
	} else if nodes > 1 {
		bandwidth = min(bandwidth, float64(local)*m.NetworkGBps*1e9*networkEfficiency)
	}
	return bandwidth, collectiveStart + float64(g.size-nodes)*nodeHop + float64(nodes-1)*networkHop
}

// gather is the seconds of an all-gather of bytes in all.
func (m *Machine) gather(g group, bytes float64) float64 {
	if g.size == 1 {
		return 0
	}
	return m.ring("all_gather", g, bytes)
}

// scatter is the seconds of a reduce-scatter of bytes in all.
func (m *Machine) scatter(g group, bytes float64) float64 {
	if g.size == 1 {
		return 0
	}
	return m.ring("reduce_scatter", g, bytes)
}

// ring is the seconds in which bytes in all go round the group, each rank's part past every other; in a node as
// measured, if it was.
func (m *Machine) ring(name string, g group, bytes float64) float64 {
	if g.local(m) == g.size {
		if s, ok := m.Measured.collective(name, g.size, bytes); ok {
			return s
		}
	}
	bandwidth, latency := m.link(g)
	return bytes*float64(g.size-1)/float64(g.size)/bandwidth + latency
}

// reduce is the seconds of an all-reduce: a reduce-scatter and an all-gather.
func (m *Machine) reduce(g group, bytes float64) float64 {
	return m.scatter(g, bytes) + m.gather(g, bytes)
}

// send is the seconds in which bytes come from one pipeline rank to the next.
func (m *Machine) send(j *Job, bytes float64) float64 {
	if g := (group{j.Dims.PP, j.world() / j.Dims.PP}); g.local(m) == g.size {
		if s, ok := m.Measured.collective("send", 2, bytes); ok {
			return s
		}
		return bytes/(m.NodeGBps*1e9*nodeEfficiency) + collectiveStart
	}
	return bytes/(m.NetworkGBps*1e9*networkEfficiency) + collectiveStart + networkHop
}

// tpTime is the seconds of a layer's collectives over tp in one direction: the stream is gathered before attention and
// the gated unit, in float8 where it is cast first, and reduced behind them.
func (j *Job) tpTime(m *Machine) float64 {
	values := j.tokens() * float64(j.Model.Dim)
	bytes := values * j.computeBytes()
	gathered := bytes
	if j.gathersFloat8(m) {
		gathered = values
	}
	s := 2*m.gather(j.tpGroup(), gathered) + 2*m.scatter(j.tpGroup(), bytes)
	if j.AsyncTP {
		s *= 1 - asyncTPHides
	}
	return s
}

// cpTime is the seconds that a layer's attention over cp costs beside the flops: keys and values are gathered or go
// round, their gradients are reduced, and the partial results of each piece, and gradients, are put together in float32.
func (j *Job) cpTime(m *Machine) (forward, backward float64) {
	if j.Dims.CP == 1 {
		return 0, 0
	}
	w, cp := j.width(), float64(j.Dims.CP)
	kv := w.kv
	if m.Software.RepeatKV {
		kv = w.q
	}
	moved := m.gather(j.cpGroup(), 2*j.tokens()*cp*kv*j.computeBytes())
	if j.Ring { // they go round beside the attention of the piece before
		moved *= contention
	}
	merged := m.stream((cp - 1) * j.tokens() * w.q * mergeTraffic)
	return moved + merged, 2*moved + merged
}

// epTime is the seconds in which a layer's tokens go to their experts and come back, one way of differentiation.
func (j *Job) epTime(m *Machine) float64 {
	if j.Dims.EP == 1 {
		return 0
	}
	return 2 * m.gather(group{j.Dims.EP, 1}, j.tokens()*j.width().stream*j.computeBytes())
}
