package data

// Batch is some rows, one after the other: Tokens and Labels are (Rows, SeqLen).
type Batch struct {
	First        int64 // position of the first row
	Rows, SeqLen int
	Tokens       []int32
	Labels       []int32 // the token to predict at each position, or [Ignored]
}

// Valid counts the labels that are learned.
func (b *Batch) Valid() int64 {
	n := int64(0)
	for _, l := range b.Labels {
		if l != Ignored {
			n++
		}
	}
	return n
}

// Hash is a checksum of tokens and labels in their order. It adds up: the sum of the hashes of parts (microsteps,
// data-parallel ranks) is the hash of the whole, so a step has one batch_hash whatever the mesh.
func (b *Batch) Hash() uint64 {
	sum := uint64(0)
	for i := range b.Rows {
		h := mix(uint64(b.First + int64(i)))
		for k := i * b.SeqLen; k < (i+1)*b.SeqLen; k++ {
			h = mix(h ^ uint64(uint32(b.Tokens[k])) ^ uint64(uint32(b.Labels[k]))<<32)
		}
		sum += h
	}
	return sum
}

// Share is what one data-parallel rank takes of each optimizer step: Local rows a microstep.
type Share struct {
	Rank, Ranks int // of the data-parallel dimensions together
	Local       int // rows
}

// First is the position of the rank's first row in a microstep (from 0) of the step whose first row has position
// step; the others follow it. A microstep's rows go to the ranks in order, and the microsteps follow each other:
// two ranks take in one microstep what one rank takes in two.
func (s Share) First(step int64, microstep int) int64 {
	return step + int64(microstep*s.Ranks+s.Rank)*int64(s.Local)
}
