package train

import (
	"context"
	"fmt"

	"titan/libtitan/data"
	"titan/libtitan/exec"
	"titan/libtitan/exit"
	"titan/libtitan/tokenizer"
)

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
		tok, err = tokenizer.Byte(vocab)
	} else {
		tok, err = tokenizer.Load(m.Data.Tokenizer)
	}
	if err != nil {
		return nil, err
	}
	if tok.VocabSize() > vocab {
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

// batch describes what fill read.
type batch struct {
	rows, tokens, valid int
	hash                string
}

// fill reads the rows from position on into mem's microbatches, in their order.
func (d *dataset) fill(mem *exec.Memory, position int64, rowsEach int) (batch, error) {
	var all batch
	var hash uint64
	for i, tokens := range mem.Tokens {
		b := data.Batch{First: position + int64(all.rows), Rows: rowsEach, SeqLen: len(tokens) / rowsEach, Tokens: tokens, Labels: mem.Labels[i]}
		if err := d.read(&b); err != nil {
			return all, err
		}
		all.rows += rowsEach
		all.tokens += len(tokens)
		all.valid += int(b.Valid())
		hash += b.Hash()
	}
	all.hash = fmt.Sprintf("%016x", hash)
	return all, nil
}

func (d *dataset) read(b *data.Batch) error {
	for r := range b.Rows {
		lo, hi := r*b.SeqLen, (r+1)*b.SeqLen
		row, tokens, labels := b.First+int64(r), b.Tokens[lo:hi], b.Labels[lo:hi]
		if err := d.Read(row, tokens, labels); err != nil {
			return err
		}
		if err := d.check(row, tokens, labels); err != nil {
			return err
		}
	}
	return nil
}

// check refuses ids that the model has no row for: they can come from files of ids.
func (d *dataset) check(row int64, tokens, labels []int32) error {
	for i := range tokens {
		t, l := tokens[i], labels[i]
		if t < 0 || int(t) >= d.vocab || l != data.Ignored && (l < 0 || int(l) >= d.vocab) {
			return exit.Input.Errorf("data: row %d position %d: token %d, label %d: outside the model's vocabulary of %d", row, i, t, l, d.vocab)
		}
	}
	return nil
}
