package estimate

// Parts is where a step's time goes, in seconds, on the pipeline rank that works longest. What it waits for others is the
// rest of the step.
type Parts struct {
	Products        float64 // matrix products
	Attention       float64
	MemoryBound     float64 // norms, rotation, gated unit, embedding, loss
	Float8Casts     float64
	TensorParallel  float64 // collectives over tp that nothing hides
	ContextParallel float64 // collectives over cp, and putting partial results together
	ExpertParallel  float64 // tokens to their experts and back
	FSDP            float64 // casts and copies, and what of its collectives nothing hides
	Optimizer       float64 // norm, clipping, AdamW
	Host            float64 // the GPU waits for the host
}

func (p Parts) plus(q Parts) Parts {
	return Parts{p.Products + q.Products, p.Attention + q.Attention, p.MemoryBound + q.MemoryBound, p.Float8Casts + q.Float8Casts,
		p.TensorParallel + q.TensorParallel, p.ContextParallel + q.ContextParallel, p.ExpertParallel + q.ExpertParallel,
		p.FSDP + q.FSDP, p.Optimizer + q.Optimizer, p.Host + q.Host}
}

func (p Parts) times(n float64) Parts {
	return Parts{p.Products * n, p.Attention * n, p.MemoryBound * n, p.Float8Casts * n,
		p.TensorParallel * n, p.ContextParallel * n, p.ExpertParallel * n, p.FSDP * n, p.Optimizer * n, p.Host * n}
}

// Sum is the seconds of all parts.
func (p Parts) Sum() float64 {
	return p.Products + p.Attention + p.MemoryBound + p.Float8Casts + p.TensorParallel + p.ContextParallel + p.ExpertParallel + p.FSDP + p.Optimizer + p.Host
}
