package train

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"titan/libtitan/data"
	"titan/libtitan/exec"
	"titan/libtitan/exit"
	"titan/libtitan/placement"
	"titan/libtitan/plan"
	"titan/libtitan/tokenizer"
)

const numBytes = 256

// dataset is the rows of a run's files.
type dataset struct {
	*data.Dataset
	vocab int
}

func (r *run) openData(ctx context.Context, paths, exclude []string, shuffle bool) (*dataset, error) {
	m := r.job.Manifest
	vocab := m.Model.Config.VocabSize
	var tok tokenizer.Tokenizer
	var err error
	if m.Data.Tokenizer == "" || m.Data.Tokenizer == "byte" {
		// A smaller vocabulary has files of ids; the bytes of text would be refused as they are read.
		tok, err = tokenizer.Byte(max(vocab, numBytes))
	} else {
		tok, err = tokenizer.Load(m.Data.Tokenizer)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, exit.Input.Errorf("data.tokenizer %s: there is no such file: name a Hugging Face tokenizer.json, or byte", m.Data.Tokenizer)
	}
	if err != nil {
		return nil, err
	}
	if tok.VocabSize() > max(vocab, numBytes) {
		return nil, exit.Input.Errorf("tokenizer %s: it has %d tokens, the model's vocabulary %d: plan a model with --vocab %d", m.Data.Tokenizer, tok.VocabSize(), vocab, tok.VocabSize())
	}
	d, err := data.Open(ctx, data.Options{
		Paths: paths, Exclude: exclude, Tokenizer: tok, SeqLen: m.Training.SeqLen, Seed: m.Training.Seed, Shuffle: shuffle,
	})
	if err != nil {
		return nil, err
	}
	return &dataset{d, vocab}, nil
}

// batch describes the rows of a step, over all ranks.
type batch struct {
	rows, tokens, valid int
	hash                string
}

// share is this rank's part of the rows of a step, by microbatch.
type share struct {
	position       int64 // of the step
	tokens, labels [][]int32
	valid          int64
	hash           uint64
	err            error
}

// readShare reads this rank's share of the rows from position on, for microbatches.
func (k *rank) readShare(d *dataset, position int64, microbatches int) *share {
	t := k.job.Manifest.Training
	dp := k.job.DPIndex(k.comm.Rank())
	perStep := t.LocalBatchSize / k.job.Rows // microbatches of an accumulation step
	s := &share{position: position}
	for i := range microbatches {
		from := data.Share{Rank: dp, Ranks: k.job.DP, Local: t.LocalBatchSize}
		b, err := d.Batch(from.First(position, i/perStep)+int64(i%perStep*k.job.Rows), k.job.Rows)
		if err == nil {
			err = d.check(b)
		}
		if s.err = err; err != nil {
			return s
		}
		s.valid += b.Valid()
		s.hash += b.Hash()
		s.tokens, s.labels = append(s.tokens, b.Tokens), append(s.labels, b.Labels)
	}
	return s
}

// readAhead begins to read the share of the step after b, if there is one to come.
func (k *rank) readAhead(b batch) <-chan *share {
	next := make(chan *share, 1)
	if k.pos.Step+1 >= k.job.Manifest.Training.Steps {
		next <- nil
		return next
	}
	position, microbatches := k.pos.after(b).Rows, len(k.mem.Tokens)
	go func() { next <- k.readShare(k.train, position, microbatches) }()
	return next
}

// fill puts this rank's share of the rows from position on into mem's microbatches, and counts those of all.
func (k *rank) fill(ctx context.Context, d *dataset, mem *exec.Memory, position int64) (batch, error) {
	s := k.ahead
	if s == nil || d != k.train || s.position != position {
		s = k.readShare(d, position, len(mem.Tokens))
	}
	if s.err != nil {
		return batch{}, s.err
	}
	at := k.job.Where(k.comm.Rank())
	for i := range mem.Tokens {
		k.localPositions(mem.Tokens[i], s.tokens[i], at)
		k.localPositions(mem.Labels[i], s.labels[i], at)
	}
	valid, hash := s.valid, s.hash
	rows := len(mem.Tokens) * k.job.Rows * k.job.DP
	out := batch{rows: rows, tokens: rows * k.job.Manifest.Training.SeqLen}
	if k.job.DP > 1 {
		// One rank of each data-parallel place counts; a hash goes in halves, which float64 holds exactly.
		sums := make([]float64, 3)
		if at.PP == 0 && k.job.Mesh.Index(at.Coord, placement.CP|placement.TP) == 0 {
			sums[0], sums[1], sums[2] = float64(valid), float64(hash>>32), float64(hash&(1<<32-1))
		}
		if err := k.comm.Sum(ctx, sums); err != nil {
			return out, err
		}
		valid, hash = int64(sums[0]), uint64(sums[1])<<32+uint64(sums[2])
	}
	out.valid, out.hash = int(valid), fmt.Sprintf("%016x", hash)
	return out, nil
}

// localPositions copies the positions that a context-parallel rank has of each row.
func (k *rank) localPositions(dst, rows []int32, at plan.Where) {
	cp, seqLen := k.job.Mesh.Size(placement.CP), k.job.Manifest.Training.SeqLen
	if cp == 1 {
		copy(dst, rows)
		return
	}
	mine := placement.Chunk(seqLen, cp, k.job.Mesh.Index(at.Coord, placement.CP))
	for i := range dst {
		dst[i] = rows[i/mine.Len*seqLen+placement.HeadTail(seqLen, 2*cp, mine.Start+i%mine.Len)]
	}
}

// check refuses ids that the model has no row for: they can come from files of ids.
func (d *dataset) check(b *data.Batch) error {
	for i, t := range b.Tokens {
		if l := b.Labels[i]; t < 0 || int(t) >= d.vocab || l != data.Ignored && (l < 0 || int(l) >= d.vocab) {
			row, position := b.First+int64(i/b.SeqLen), i%b.SeqLen
			return exit.Input.Errorf("data: row %d position %d: token %d, label %d: outside the model's vocabulary of %d", row, position, t, l, d.vocab)
		}
	}
	return nil
}
