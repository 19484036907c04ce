// Package data makes the batches of a run from files of text or tokens.
//
// All documents, in the order of their paths, form one stream of tokens, each document as BOS ids EOS. The
// stream is cut into rows of seq_len+1 tokens; what is left at its end is dropped. A row's first seq_len tokens
// are the input, its last seq_len the labels; documents cross rows, and no mask separates them (torchtitan
// v0.2.2, hf_datasets/text_datasets.py). Each epoch reads every row once, in an order that depends on the seed
// and the epoch alone.
//
// The position in the data is one number, the count of rows that the run has consumed. It means the same on
// any mesh, so a run may resume with another data-parallel degree: see [Share].
//
// Start with [Open].
package data

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"titan/libtitan/exit"
	"titan/libtitan/tokenizer"
)

// Ignored is the label of a position that is not learned.
const Ignored int32 = -100

// Options says what is read, and how.
type Options struct {
	Paths     []string // files, folders (all files below that are not hidden), globs with ** for any depth
	Exclude   []string // globs; one without a slash is held against every part of a path
	Tokenizer tokenizer.Tokenizer
	SeqLen    int
	Seed      uint64
	Shuffle   bool
	MaxMemory int64 // bytes of tokens held in memory, beyond it they go to a temporary file ($TMPDIR); 0: 1 GiB
}

// Dataset is an endless sequence of rows. Its methods may be called from several goroutines at once.
type Dataset struct {
	stream      stream
	rows        int64
	seqLen      int
	seed        uint64
	shuffle     bool
	fingerprint string
}

// stream is all documents end to end. A token that must not be learned is stored as its complement, ^id.
type stream interface {
	size() int64 // tokens
	// read fills dst from the token at offset on; the range is inside the stream.
	read(dst []int32, offset int64) error
	close() error
}

// Open finds the files and counts their rows. Text under the byte tokenizer is left on disk and read row by
// row; anything else is tokenised here, on all cores. ctx stops that.
func Open(ctx context.Context, o Options) (*Dataset, error) {
	if o.SeqLen < 1 {
		return nil, exit.Input.Errorf("data: seq_len %d is not positive", o.SeqLen)
	}
	files, err := find(o.Paths, o.Exclude)
	if err != nil {
		return nil, err
	}
	s, err := open(ctx, files, o)
	if err != nil {
		return nil, err
	}
	d := &Dataset{stream: s, rows: s.size() / int64(o.SeqLen+1), seqLen: o.SeqLen, seed: o.Seed, shuffle: o.Shuffle}
	if d.rows == 0 {
		return nil, exit.Input.Errorf("data: %s: %d tokens, but one row of seq_len+1 needs %d", summary(files), s.size(), o.SeqLen+1)
	}
	d.fingerprint = fingerprint(files, o)
	return d, nil
}

// open chooses how the stream is held.
func open(ctx context.Context, files []source, o Options) (stream, error) {
	if _, ok := o.Tokenizer.(tokenizer.Bytes); ok && allText(files) {
		return newByteStream(files, o.Tokenizer), nil
	}
	return tokenize(ctx, files, o)
}

// summary names files in an error.
func summary(files []source) string {
	if len(files) == 1 {
		return files[0].path
	}
	return fmt.Sprintf("%d files (%s, ...)", len(files), files[0].path)
}

// fingerprint covers the files' names below their roots, so a data folder may move, their sizes, and how they
// are cut into rows.
func fingerprint(files []source, o Options) string {
	h := sha256.New()
	fmt.Fprintf(h, "rows of %d tokens by %s\n", o.SeqLen+1, o.Tokenizer.Fingerprint())
	for _, f := range files {
		fmt.Fprintf(h, "%d %q\n", f.size, f.name)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Rows is the number of rows in an epoch.
func (d *Dataset) Rows() int64 { return d.rows }

// Fingerprint identifies the files, their sizes, the tokenizer and the sequence length. A position saved with
// one fingerprint means nothing in a dataset with another. The seed is not part of it.
func (d *Dataset) Fingerprint() string { return d.fingerprint }

// Close removes what [Open] put in a temporary file.
func (d *Dataset) Close() error { return d.stream.close() }

// Read fills tokens and labels, SeqLen each, with the row at a position: the number of rows before it since
// the run began, over all epochs. A label is the token after its position, or [Ignored].
func (d *Dataset) Read(position int64, tokens, labels []int32) error {
	if position < 0 || len(tokens) != d.seqLen || len(labels) != d.seqLen {
		return fmt.Errorf("data: row %d into %d tokens and %d labels: want a row >= 0 and %d of both", position, len(tokens), len(labels), d.seqLen)
	}
	epoch, row := position/d.rows, position%d.rows
	if d.shuffle {
		row = permute(row, d.rows, mix(d.seed)^mix(uint64(epoch)+1))
	}
	window := make([]int32, d.seqLen+1)
	if err := d.stream.read(window, row*int64(d.seqLen+1)); err != nil {
		return err
	}
	for i := range tokens {
		tokens[i], labels[i] = window[i], window[i+1]
		if tokens[i] < 0 {
			tokens[i] = ^tokens[i]
		}
		if labels[i] < 0 {
			labels[i] = Ignored
		}
	}
	return nil
}

// Batch reads the rows at positions first to first+rows-1.
func (d *Dataset) Batch(first int64, rows int) (*Batch, error) {
	b := &Batch{First: first, Rows: rows, SeqLen: d.seqLen, Tokens: make([]int32, rows*d.seqLen), Labels: make([]int32, rows*d.seqLen)}
	for i := range rows {
		lo, hi := i*d.seqLen, (i+1)*d.seqLen
		if err := d.Read(first+int64(i), b.Tokens[lo:hi], b.Labels[lo:hi]); err != nil {
			return nil, err
		}
	}
	return b, nil
}
