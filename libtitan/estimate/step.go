package estimate

import "math"

// time fills in what a step takes.
func (e *Estimate) time(j *Job, c *clock) error {
	r, err := c.run(j)
	if err != nil {
		return err
	}
	l := c.load(j)
	if c.m.Shared() {
		e.Parts = c.sum(j, l)
		e.StepSeconds = e.Parts.Sum()
	} else {
		e.Bubble = r.bubble
		e.Parts = c.busiest(j)
		e.Parts.FSDP, e.Parts.Optimizer = j.fsdpTime(c.m, l), j.updateTime(c.m, l)
		e.StepSeconds = float64(j.Passes)*r.pass + e.Parts.FSDP + e.Parts.Optimizer
	}
	if host := j.hostTime(c.m, l); host > e.StepSeconds {
		e.Parts.Host = host - e.StepSeconds
		e.StepSeconds = host
	}
	e.TokensPerSecondPerGPU = j.StepTokens() / float64(j.world()) / e.StepSeconds
	e.MFU = e.TokensPerSecondPerGPU * float64(j.Model.FlopsPerToken(j.SeqLen)) / (c.m.BF16TFLOPS * 1e12)
	return nil
}

// lower is a time that no step of j goes below, found without laying its schedule out.
func (c *clock) lower(j *Job, wholeBackwards bool) float64 {
	l := c.load(j)
	through := l.through[0]
	if wholeBackwards {
		through = l.through[1]
	}
	return max(float64(j.Passes)*through+j.fsdpTime(c.m, l)+j.updateTime(c.m, l), j.hostTime(c.m, l))
}

// wholeBackwards reports whether a rank's last action is the backward of its first stage.
func (j *Job) wholeBackwards() bool {
	switch j.Schedule {
	case "GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS":
		return true
	}
	return false
}

// StepTokens is the number of tokens in an optimizer step.
func (j *Job) StepTokens() float64 {
	rows := float64(j.Rows) * float64(j.NumMicrobatches) * float64(j.Passes)
	return rows * float64(j.Dims.DPReplicate) * float64(j.Dims.DPShard) * float64(j.SeqLen)
}

// sum is the work of a step of all ranks of a node, which share one device.
func (c *clock) sum(j *Job, l *load) (all Parts) {
	for _, p := range c.works(j) {
		all = all.plus(p)
	}
	params := 0.0
	for _, s := range j.Stages {
		params += j.stageParams(s)
	}
	ranks := float64(j.world() / j.Dims.PP)
	all = all.times(ranks * float64(j.NumMicrobatches) * float64(j.Passes))
	all.FSDP, all.Optimizer = j.fsdpTime(c.m, l)*float64(j.world()), ranks*c.m.stream(params/float64(j.fsdp())*c.m.costs().optimizer)
	return all.times(math.Min(1, float64(c.m.GPUsPerNode)/float64(j.world())))
}

// busiest is the work of a step of the pipeline rank that has most.
func (c *clock) busiest(j *Job) (most Parts) {
	for _, p := range c.works(j) {
		if p.Sum() > most.Sum() {
			most = p
		}
	}
	return most.times(float64(j.NumMicrobatches) * float64(j.Passes))
}

// works is the work of each pipeline rank on one microbatch.
func (c *clock) works(j *Job) []Parts {
	u := c.unitsOf(j)
	ranks := make([]Parts, j.Dims.PP)
	for _, s := range j.Stages {
		w := u.of(j.mix(s), c.m)
		ranks[s.Rank] = ranks[s.Rank].plus(w.forward).plus(w.inputGrad).plus(w.weightGrad)
	}
	return ranks
}

// updateTime is the seconds of the gradients' norm, clipping and AdamW on the rank with the most parameters.
func (j *Job) updateTime(m *Machine, l *load) float64 {
	return m.stream(l.weights / float64(j.fsdp()) * m.costs().optimizer)
}

// hostTime is the seconds that the host needs to start a step's kernels.
func (j *Job) hostTime(m *Machine, l *load) float64 {
	cost := m.costs()
	block := cost.hostEager
	if j.Compile {
		block = cost.host
	}
	if j.wrapped() {
		block += cost.hostFSDP
	}
	return block * float64(l.blocks+1) * float64(j.NumMicrobatches) * float64(j.Passes)
}
