package manifest

import "fmt"

// Float8Multiple is what the sizes of a float8 product must be multiples of: tensor cores read 16 bytes at a time.
const Float8Multiple = 16

// NewFloat8 is the section of a recipe with torchtitan's filter: the head stays in its type.
func NewFloat8(recipe string) *Float8 {
	f := &Float8{Recipe: recipe, FilterFQNs: []string{}}
	if f.On() {
		f.FilterFQNs = []string{"lm_head"}
	}
	return f
}

// On reports whether anything is to be float8.
func (f *Float8) On() bool { return f != nil && f.Recipe != "off" }

// checkFloat8 refuses a microbatch whose tokens, over which the products of the backward sum, are not so many: unlike a layer,
// which can stay in its type, they are the same everywhere.
func (m *Manifest) checkFloat8(p *problems) {
	if !m.Float8.On() {
		return
	}
	t, cp := m.Training, m.Mesh.Dims.CP
	rows, what := t.LocalBatchSize, fmt.Sprintf("local_batch_size %d", t.LocalBatchSize)
	if pipe := m.Pipeline; pipe != nil && pipe.NumMicrobatches > 1 {
		rows /= pipe.NumMicrobatches
		what += fmt.Sprintf(" / num_microbatches %d", pipe.NumMicrobatches)
	}
	what += fmt.Sprintf(" * seq_len %d", t.SeqLen)
	if cp > 1 {
		what += fmt.Sprintf(" / cp %d", cp)
	}
	if tokens := rows * t.SeqLen / cp; tokens%Float8Multiple != 0 {
		p.add("float8.recipe %s: a microbatch of %s = %d tokens is not divisible by %d: choose another batch or seq_len, or set float8.recipe to off", m.Float8.Recipe, what, tokens, Float8Multiple)
	}
}
