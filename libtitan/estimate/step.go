package estimate

// time fills in what a step takes.
func (e *Estimate) time(j *Job, c *clock) error {
	r, err := c.run(j)
	if err != nil {
		return err
	}
	l := c.load(j)
	e.Bubble = r.bubble
	e.Parts = c.busiest(j)
	e.Parts.FSDP, e.Parts.Optimizer = j.fsdpTime(c.m, l), j.updateTime(c.m, l)
	e.StepSeconds = float64(j.Passes)*r.pass + e.Parts.FSDP + e.Parts.Optimizer
	if host := j.hostTime(l); host > e.StepSeconds {
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
	return max(float64(j.Passes)*through+j.fsdpTime(c.m, l)+j.updateTime(c.m, l), j.hostTime(l))
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

// busiest is the work of a step of the pipeline rank that has most.
func (c *clock) busiest(j *Job) (most Parts) {
	u := c.unitsOf(j)
	ranks := make([]Parts, j.Dims.PP)
	for _, s := range j.Stages {
		w := u.of(j.mix(s), c.m)
		ranks[s.Rank] = ranks[s.Rank].plus(w.forward).plus(w.inputGrad).plus(w.weightGrad)
	}
	for _, p := range ranks {
		if p.Sum() > most.Sum() {
			most = p
		}
	}
	return most.times(float64(j.NumMicrobatches) * float64(j.Passes))
}

// updateTime is the seconds of the gradients' norm, clipping and AdamW on the rank with the most parameters.
func (j *Job) updateTime(m *Machine, l *load) float64 {
	return m.stream(l.weights / float64(j.fsdp()) * optimizerTraffic)
}

// hostTime is the seconds that the host needs to start a step's kernels.
func (j *Job) hostTime(l *load) float64 {
	block := hostEager
	if j.Compile {
		block = hostCompiled
	}
	if j.wrapped() {
		block += hostFSDP
	}
	return block * float64(l.blocks+1) * float64(j.NumMicrobatches) * float64(j.Passes)
}
