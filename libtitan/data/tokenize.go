package data

import (
	"context"
	"fmt"
	"runtime"

	"golang.org/x/sync/errgroup"

	"titan/libtitan/exit"
	"titan/libtitan/tokenizer"
)

// document is text, or ids that are taken as they are, without BOS and EOS. labels, if there are any, are aligned
// with ids as in Hugging Face data: label i is ids[i], or Ignored where that token is not to be learned.
type document struct {
	text   []byte
	ids    []int32
	labels []int32
	where  string // file and place, for errors
}

// batch is a run of documents that one goroutine tokenises.
type batch struct {
	documents []document
	bytes     int
	tokens    []int32
	err       error
	done      chan struct{} // closed when tokens or err is set
}

// batchBytes is large beside the cost of passing a batch on, small beside memory.
const batchBytes = 1 << 20

const defaultMaxMemory = 1 << 30

// tokenize reads files in order, tokenises batches of their documents on all cores, and stores the tokens in order.
func tokenize(ctx context.Context, files []source, o Options) (stream, error) {
	maxMemory := o.MaxMemory
	if maxMemory == 0 {
		maxMemory = defaultMaxMemory
	}
	s := newStore(o.Tokenizer.VocabSize(), maxMemory)
	workers := runtime.GOMAXPROCS(0)
	work, order := make(chan *batch), make(chan *batch, 2*workers)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(work)
		defer close(order)
		return readAll(ctx, files, work, order)
	})
	for range workers {
		g.Go(func() error {
			for b := range work {
				b.tokens, b.err = encode(o.Tokenizer, b.documents)
				b.documents = nil
				close(b.done)
			}
			return nil
		})
	}
	g.Go(func() error { return storeAll(ctx, s, order) })
	err := g.Wait()
	if err == nil {
		err = s.finish()
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// readAll sends the documents of files, batched, to the workers and, in the same order, to the store.
func readAll(ctx context.Context, files []source, work, order chan<- *batch) error {
	next := &batch{done: make(chan struct{})}
	send := func() error {
		for _, to := range []chan<- *batch{order, work} {
			select {
			case to <- next:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		next = &batch{done: make(chan struct{})}
		return nil
	}
	for _, f := range files {
		err := formatOf(f.path).read(f.path, func(d document) error {
			next.documents = append(next.documents, d)
			next.bytes += len(d.text) + 4*len(d.ids) + 1
			if next.bytes < batchBytes {
				return nil
			}
			return send()
		})
		if err != nil {
			return err
		}
	}
	return send()
}

// storeAll appends the tokens of batches as they come.
func storeAll(ctx context.Context, s *store, order <-chan *batch) error {
	for b := range order {
		select {
		case <-b.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		if b.err != nil {
			return b.err
		}
		if err := s.append(b.tokens); err != nil {
			return err
		}
	}
	return nil
}

// encode joins the tokens of documents.
func encode(tok tokenizer.Tokenizer, documents []document) (tokens []int32, err error) {
	before, after := specials(tok)
	for _, d := range documents {
		if d.ids != nil {
			if tokens, err = appendIDs(tokens, d, tok.VocabSize()); err != nil {
				return nil, exit.Input.Errorf("data: %s: %w", d.where, err)
			}
			continue
		}
		tokens = append(tokens, before...)
		tokens = tok.Encode(tokens, d.text)
		tokens = append(tokens, after...)
	}
	return tokens, nil
}

// appendIDs appends a document's ids, those that must not be learned as their complement.
func appendIDs(tokens []int32, d document, vocabSize int) ([]int32, error) {
	if d.labels != nil && len(d.labels) != len(d.ids) {
		return nil, fmt.Errorf("%d labels for %d input_ids", len(d.labels), len(d.ids))
	}
	for i, id := range d.ids {
		if id < 0 || int(id) >= vocabSize {
			return nil, fmt.Errorf("input_ids[%d] is %d, outside the vocabulary of %d", i, id, vocabSize)
		}
		switch {
		case d.labels == nil || d.labels[i] == id:
			tokens = append(tokens, id)
		case d.labels[i] == Ignored:
			tokens = append(tokens, ^id)
		default:
			return nil, fmt.Errorf("labels[%d] is %d, neither input_ids[%d] = %d nor %d (labels are not shifted in the file)", i, d.labels[i], i, id, Ignored)
		}
	}
	return tokens, nil
}
