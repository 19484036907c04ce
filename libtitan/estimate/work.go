package estimate

// width is how many values a token has on one tensor-parallel rank, of each kind of activation in a layer.
type width struct {
	stream float64 // of the residual stream, cut along the sequence
	whole  float64 // of the stream gathered, as products take it
	q, kv  float64 // of the query heads, of the key or the value heads
	ffn    float64 // of the gated unit
}

func (j *Job) width() width {
	c, tp := &j.Model, j.tp()
	w := width{
		stream: float64(c.Dim), whole: float64(c.Dim),
		q:   float64(c.NumHeads*c.HeadDim) / tp,
		kv:  float64(c.NumKVHeads*c.HeadDim) / tp,
		ffn: float64(c.FFNHidden) / tp,
	}
	if !j.WholeSequence {
		w.stream /= tp
	}
	return w
}

func (j *Job) tp() float64 { return float64(j.Dims.TP) }

// layerParams is the number of weights in the products of one layer, all experts counted; its norms are less than a
// thousandth.
func (j *Job) layerParams() float64 {
	c := &j.Model
	attention := 2 * float64(c.Dim) * float64(c.HeadDim) * float64(c.NumHeads+c.NumKVHeads)
	return attention + 3*float64(c.Dim)*float64(c.FFNHidden)*float64(max(1, c.NumExperts))
}

// vocabParams is the number of weights of the embedding, or of the head.
func (j *Job) vocabParams() float64 { return float64(j.Model.VocabSize) * float64(j.Model.Dim) }

// localVocab is the number of logits of a token on one rank of tp.
func (j *Job) localVocab() float64 {
	if j.WholeLogits {
		return float64(j.Model.VocabSize)
	}
	return float64((j.Model.VocabSize + j.Dims.TP - 1) / j.Dims.TP)
}

// product is one matrix product of a layer's forward: tokens x in times in x out.
type product struct{ in, out float64 }

// products are those of one layer on one tensor-parallel rank; byOp is which of them selective op recomputes.
func (j *Job) products() (all []product, byOp []product) {
	w := j.width()
	wq, wk, wo := product{w.whole, w.q}, product{w.whole, w.kv}, product{w.q, w.whole}
	up, down := product{w.whole, w.ffn}, product{w.ffn, w.whole}
	return []product{wq, wk, wk, wo, up, up, down}, []product{wk, wo, up}
}

// time is the seconds of a product of t tokens, by its flops at a rate of flops a second or, if that takes longer,
// by its bytes.
func (p product) time(t, rate, bytes, bandwidth float64) float64 {
	traffic := bytes * (t*p.in + t*p.out + p.in*p.out) / bandwidth
	return max(2*t*p.in*p.out/rate, traffic) + productStart
}

// rate is how many flops a second products of the job's type run at: the peak less what is lost at the power cap.
func (m *Machine) rate(peakTFLOPS, efficiency float64) float64 {
	return peakTFLOPS * 1e12 * efficiency * min(1, m.Watts/m.FullWatts)
}

// productTime is the seconds of products ps of t tokens, in float8 or in the job's type.
func (j *Job) productTime(m *Machine, ps []product, float8 bool) (s float64) {
	kind, rate, bytes := "bfloat16", m.rate(m.BF16TFLOPS, productEfficiency), 2.0
	switch {
	case float8:
		kind, rate, bytes = "float8", m.rate(m.FP8TFLOPS, float8Efficiency), 1
	case j.Compute == "float32":
		kind, rate, bytes = "float32", m.rate(m.FP32TFLOPS, productEfficiency), 4
	}
	for _, p := range ps {
		one, known := m.Measured.product(kind, p, j.tokens())
		if !known {
			one = p.time(j.tokens(), rate, bytes, m.MemoryGBps*1e9)
		}
		s += one
	}
	return s
}

// attentionTime is the seconds of one layer's attention: half of S^2, twice two flops a value forward, and 2.5 times
// that backward. Short rows and narrow heads fill the tiles less.
func (j *Job) attentionTime(m *Machine) (forward, backward float64) {
	s, d := float64(j.SeqLen), float64(j.Model.HeadDim)
	local := s / float64(j.Dims.CP)
	flops := 2 * float64(j.Rows) * local * s * j.width().q
	if f, b, ok := m.Measured.attention(j.Compute, local, d); ok {
		return flops / f, 2.5 * flops / b
	}
	wide := max(d, narrowHead)
	fill := (local / (local + attentionRow)) / (8192 / (8192 + attentionRow)) * (d / (wide + attentionHead)) / (128 / (128 + attentionHead))
	if j.Compute == "float32" {
		fill *= m.FP32TFLOPS / m.BF16TFLOPS
	}
	fill *= 1e12 * hot / (1 + m.Software.CPWaits*(1-1/float64(j.Dims.CP)))
	return flops / (m.AttentionForwardTFLOPS * fill), 2.5 * flops / (m.AttentionBackwardTFLOPS * fill)
}

// elementwiseTime is the seconds of a layer's memory-bound kernels. Forward: two norms, the rotation, the gated unit,
// two sums with the stream, fused as a compiler fuses them; backward: theirs, and the sums of gradients that meet.
func (j *Job) elementwiseTime(m *Machine) (forward, backward float64) {
	w := j.width()
	values := m.elementwise(j.tokens()*j.computeBytes(), j.Compute)
	if !j.Compile {
		values *= m.costs().eager
	}
	forward = values*(9*w.stream+2*(w.q+w.kv)+3*w.ffn) + m.starts(forwardKernels)
	backward = values*(8*w.stream+2*(w.q+w.kv)+5*w.whole+5*w.ffn) + m.starts(backwardKernels)
	return forward, backward
}

// float8Time is the seconds of making a layer's float8 operands: inputs and weights forward, gradients backward. What
// goes over tp is cast before it is gathered, except by row.
func (j *Job) float8Time(m *Machine) (forward, backward float64) {
	if j.Float8 == "off" {
		return 0, 0
	}
	w, t := j.width(), j.tokens()
	here := float8Cast + float8Turn
	if j.castApart(m) {
		here = float8CastApart
	}
	gathered := here * w.whole
	if j.gathersFloat8(m) {
		gathered = float8Cast*w.stream + float8TurnGathered*w.whole
	}
	forward = t*(2*gathered+here*(w.q+w.ffn)) + here*j.layerParams()/j.tp()
	backward = t * (2*gathered + here*(w.q+2*w.kv+2*w.ffn))
	byRow := float8ByRow[j.Float8]
	return byRow * m.elementwise(forward, j.Compute), byRow * m.elementwise(backward, j.Compute)
}

// gathersFloat8 reports whether activations are cast before they go over tp.
func (j *Job) gathersFloat8(m *Machine) bool {
	return j.Float8 == "tensorwise" && j.Dims.TP > 1 && m.Software.Float8Gathers
}

// castApart reports whether casts are kernels of their own: torchtitan v0.2.2's under tp go by a tensor subclass, past
// the compiler.
func (j *Job) castApart(m *Machine) bool {
	return j.Float8 == "tensorwise" && j.Dims.TP > 1 && !m.Software.Float8Gathers && m.Software.Runtime != "titan"
}
