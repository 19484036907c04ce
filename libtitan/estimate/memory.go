package estimate

// Memory is what one GPU of a pipeline rank holds, in bytes. The parts add up to PeakBytes.
type Memory struct {
	PPRank        int
	Params        int64 // stored values, this rank's share
	Grads         int64 // their gradients, reduced
	Optimizer     int64 // AdamW's moments
	Activations   int64 // what forwards save for backwards, of all microbatches in flight
	Logits        int64 // what the loss makes of them and back
	Buffers       int64 // gathered parameters, gradients before they are reduced, messages, one block's workspace
	Fragmentation int64 // what the allocator keeps and cannot use
	PeakBytes     int64 // reserved at the peak: what the GPU must have

	AllocatedBytes int64 // most that is live at once; each stream's memory peaks at another time, so reserved is more
}

// held is what a rank holds in bytes, before rounding.
type held struct {
	whole       float64 // elements, before FSDP cuts them
	first       float64 // elements of the module whose gradient comes last
	largest     float64 // elements of the largest unit
	activations float64 // of all microbatches in flight
	logits      float64
	freed       float64 // beside the logits, reserved but not live
	workspace   float64 // of the backward of one block
	messages    float64
	casts       float64 // bfloat16 copies of weights that autocast keeps
}

// memory is what a pipeline rank needs that holds h.
func (j *Job) memory(h held, rank int) Memory {
	r := j.onePool(h)
	if j.wrapped() {
		r = j.pools(h)
	}
	r.PPRank = rank
	return r
}

// pools is the memory under FSDP2. Its communication has streams of its own, and the caching allocator gives a
// block back to the stream that asked for it alone: gradients (reduce-scatter's stream) cannot use what activations
// (the compute stream) have freed, so the peaks of the streams add up.
func (j *Job) pools(h held) Memory {
	gathered, accumulated := 2*j.computeBytes()*j.layerParams()/j.tp(), 0.0
	if j.Keep {
		gathered = j.computeBytes() * h.whole
	}
	if j.accumulates() {
		accumulated = gradBytes * h.whole // whole gradients of the microbatches before the last
	}
	params := h.whole / float64(j.fsdp())
	reducing := gradBytes * h.largest
	state := (paramBytes + optimizerBytes) * params
	base := state + gathered + accumulated + h.messages
	forward, backward := base+h.activations+h.logits, base+h.activations+h.workspace
	if accumulated == 0 {
		backward += reducing
	}
	last := base + gradBytes*(params-h.first/float64(j.fsdp())) + reducing
	busy := max(h.logits+h.freed, h.workspace)
	return Memory{
		Params: round(paramBytes * params), Grads: round(gradBytes * params), Optimizer: round(optimizerBytes * params),
		Activations: round(h.activations), Logits: round(h.logits + h.freed),
		Buffers:        round(gathered + accumulated + reducing + h.messages + busy - h.logits - h.freed),
		AllocatedBytes: round(max(forward, backward, last)),
	}.total()
}

// onePool is the memory of a single GPU without FSDP, all on one stream: what the forward has freed serves the gradients.
func (j *Job) onePool(h held) Memory {
	state := (paramBytes + optimizerBytes) * h.whole
	forward := h.activations + h.casts + h.logits + h.freed
	r := Memory{Params: round(paramBytes * h.whole), Optimizer: round(optimizerBytes * h.whole)}
	if grads := gradBytes * h.whole; grads > forward {
		r.Grads, r.AllocatedBytes = round(grads), round(state+grads)
	} else {
		r.Activations, r.Logits, r.Buffers = round(h.activations), round(h.logits+h.freed), round(h.casts)
		r.AllocatedBytes = round(state + forward - h.freed)
	}
	return r.total()
}

// total adds up what r has, and what the allocator wastes.
func (r Memory) total() Memory {
	r.Buffers += workspaceBytes
	r.AllocatedBytes += workspaceBytes
	sum := r.Params + r.Grads + r.Optimizer + r.Activations + r.Logits + r.Buffers
	r.Fragmentation = round(fragmentation * float64(sum))
	r.PeakBytes = sum + r.Fragmentation
	return r
}

func round(x float64) int64 { return int64(x + 0.5) }

// hold adds up the stages of a rank. moments are what it holds when it holds most: microbatches in flight for each of
// its stages (see pipeline.Held).
func (j *Job) hold(m *Machine, rank int, moments [][]int) held {
	var h held
	var size []float64
	for i, s := range j.Stages {
		if s.Rank != rank {
			continue
		}
		h.add(j, s)
		what, n := j.recomputed(s)
		kept := s.Layers - n
		size = append(size, float64(n)*j.saved(what)+float64(kept)*j.saved(nothing))
		if what <= cheap { // copies of weights are kept for the backward
			kept = s.Layers
		}
		h.casts += float64(kept) * j.castBytes(j.layerParams())
		h.workspace = max(h.workspace, j.workspace(what))
		if s.Head {
			h.casts += j.castBytes(j.vocabParams())
			live, freed := j.logitBytes(m)
			h.logits, h.freed = live*j.tokens()*j.localVocab(), freed*j.tokens()*j.localVocab()
		}
		h.messages += j.messages(i)
	}
	for _, counts := range moments {
		bytes := 0.0
		for i, n := range counts {
			bytes += float64(n) * size[i]
		}
		h.activations = max(h.activations, bytes)
	}
	return h
}

// add counts the parameters of a stage.
func (h *held) add(j *Job, s Stage) {
	layer, vocab := j.layerParams()/j.tp(), j.vocabParams()/j.tp()
	whole := layer * float64(s.Layers)
	if s.Layers > 0 {
		h.largest = max(h.largest, layer)
		h.first = layer
	}
	if s.Embed {
		whole += vocab
		h.first = vocab
	}
	if s.Head && !(j.Model.Tied && s.Embed) {
		whole += vocab
	}
	if s.Embed || s.Head {
		h.largest = max(h.largest, vocab)
	}
	h.whole += whole
}

// saved is what the forward of one layer saves of one microbatch.
func (j *Job) saved(what again) float64 {
	w := j.width()
	t, c := j.tokens(), j.computeBytes()
	switch what {
	case whole:
		return t * c * w.stream
	case byOp: // the outputs of every other product (wq, wv, w1, w2) and of attention
		return t * c * (w.stream + w.q + w.kv + w.q + w.ffn + w.stream)
	}
	saved := j.savedAll()
	if what == cheap {
		saved -= t * j.inputBytes() * j.cheapInputs()
	}
	return saved
}

// cheapInputs are the inputs of products, of a token, that cost no product and no collective to make again: of the gated unit, and of
// the two norms where nothing gathers them.
func (j *Job) cheapInputs() float64 {
	w := j.width()
	if j.Dims.TP > 1 {
		return w.ffn
	}
	return 2*w.whole + w.ffn
}

// inputBytes is what a value of a product's input takes.
func (j *Job) inputBytes() float64 {
	if j.Float8 != "off" {
		return 1
	}
	return j.computeBytes()
}

// savedAll is what a layer saves when nothing is recomputed: its input, the normed input of the products, q, k, v,
// what attention gives, the sum with the input, that normed, and the three of the gated unit.
func (j *Job) savedAll() float64 {
	w := j.width()
	t, c := j.tokens(), j.computeBytes()
	bytes := c*(2*w.stream+2*w.q+2*w.kv+2*w.ffn) + j.inputBytes()*(2*w.whole+w.ffn)
	if !j.Compile { // float32 copies in two norms and the rotation, the unit's other factor
		bytes += c * (4*w.stream + w.q + w.kv + w.ffn)
	}
	return t * bytes
}

// workspace is what the backward of one block needs beside what was saved: what it recomputes, and gradients of
// the gated unit, of its input and of the stream.
func (j *Job) workspace(what again) float64 {
	w := j.width()
	bytes := j.tokens() * j.computeBytes() * (2*w.ffn + 2*w.whole + w.stream)
	bytes += j.savedAll() - j.saved(what)
	if j.Dims.TP > 1 { // gathered activations and gradients, and sums that are not reduced yet
		bytes += 3 * j.tokens() * j.computeBytes() * w.whole
	}
	if pieces := float64(j.Dims.CP); pieces > 1 { // keys and values of the whole row, or the piece that comes and the one that goes
		if j.Ring {
			pieces = 2
		}
		bytes += j.tokens() * (2*w.kv*pieces*j.computeBytes() + 2*4*w.q) // and the float32 sums of two partial results
	}
	return bytes
}

// castBytes is what autocast keeps of weights that are used in another type than stored, where no FSDP gathers them
// in that type. Float8 makes its operands anew.
func (j *Job) castBytes(params float64) float64 {
	if j.wrapped() || j.Compute == "float32" || j.Float8 != "off" {
		return 0
	}
	return j.computeBytes() * params
}

// logitBytes is what the loss holds of a logit at its peak, and what of it is free but of no use.
func (j *Job) logitBytes(m *Machine) (live, freed float64) {
	live, freed = logitsSeparate, logitsFreed
	if j.compilesLoss(m) {
		live, freed = logitsCompiled, 0
	}
	if j.Dims.TP > 1 && !j.WholeLogits {
		live += logitsParallel
	}
	return live, freed
}

// messages are the buffers of what stage i receives, one for each microbatch, and of the results that wait for their
// gradients, as PyTorch's stages keep them.
func (j *Job) messages(i int) float64 {
	if j.Dims.PP == 1 {
		return 0
	}
	one, n := j.message(), float64(j.NumMicrobatches)
	bytes := 0.0
	if i > 0 {
		bytes += n * one
	}
	if i < len(j.Stages)-1 {
		bytes += n * one
	}
	return bytes
}

// message is the size of what one stage sends another of one microbatch.
func (j *Job) message() float64 { return j.tokens() * j.computeBytes() * j.width().stream }
