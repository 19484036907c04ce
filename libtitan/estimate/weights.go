package estimate

// FlopWeights is what each part of the model (the embedding, each layer, norm with lm_head) computes for a token,
// forward and backward, by the count of the manifest's flops_per_token, and what activation checkpointing adds: a look-up
// in the embedding is none.
func (j *Job) FlopWeights() []int64 {
	c := &j.Model
	attention := int64(c.NumHeads) * int64(c.HeadDim) * int64(j.SeqLen)
	one := 6*int64(j.layerParams())/int64(max(1, c.NumExperts)) + 12*attention // a token visits one expert
	more := [numAgain]int64{whole: one / 3}
	_, again := j.products()
	for _, p := range again {
		more[byOp] += int64(2 * p.in * p.out * j.tp())
	}
	out := []int64{0}
	for l := range c.NumLayers {
		what, _ := j.recomputed(Stage{First: l, Layers: 1})
		out = append(out, one+more[what])
	}
	return append(out, 6*int64(j.vocabParams()))
}

// ByteWeights is what a GPU holds for each part: once, and for each microbatch in flight.
func (j *Job) ByteWeights() (fixed, held []int64) {
	perParam := float64(paramBytes+gradBytes+optimizerBytes) / float64(j.fsdp())
	if j.wrapped() && j.Keep {
		perParam += j.computeBytes()
	}
	if j.accumulates() {
		perParam += gradBytes
	}
	perParam /= j.tp()
	fixed, held = []int64{round(perParam * j.vocabParams())}, []int64{0}
	for l := range j.Model.NumLayers {
		what, _ := j.recomputed(Stage{First: l, Layers: 1})
		fixed = append(fixed, round(perParam*j.layerParams()))
		held = append(held, round(j.saved(what)))
	}
	live, freed := j.logitBytes(&Machine{})
	logits := (live + freed) * j.tokens() * j.localVocab()
	return append(fixed, round(perParam*j.vocabParams()+logits)), append(held, 0)
}
