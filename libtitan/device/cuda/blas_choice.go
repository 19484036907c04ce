package cuda

import (
	"cmp"
	"slices"
)

// Products that go by the fastest of the library's algorithms, which are tried in turn; those that fall behind are left out. Its first is
// up to a quarter slower than another in products of few operations (on an H200 a gradient of 512 channels at 16,384 tokens:
// 448 TFLOP/s, the best 564), and up to a tenth in those of few terms (llama3-1b's w1 and dx of its w2; in Float8 w1). Elsewhere it is
// within a few hundredths of the best, and what wins on a cool card loses under its power limit: llama3-8b's steps took 1% longer with such
// winners, in bfloat16 and in Float8. A head's result takes gigabytes, too many to try it. Where bits must be the same in every run the
// first is taken.
const (
	competitors = 8
	fewestFLOPs = 1e9  // below, nothing is to be won
	mostFLOPs   = 2e11 // of bfloat16
	fewTerms    = 2048
	mostOfFew   = 1e12 // operations, with few terms
	rounds      = 3
	burst       = 5    // of one algorithm in a round
	burstFLOPs  = 1e12 // or fewer, but one
	behind      = 1.05 // times the fastest
)

// contender is an algorithm and how long it has taken.
type contender struct {
	algo heuristic
	ms   float32
}

// competes reports whether a product of bfloat16 does.
func (p Product) competes() bool {
	n := flops(p.M, p.N, p.K)
	return p.In.Size() == 2 && (n <= mostFLOPs || p.K <= fewTerms && n <= mostOfFew)
}

// compete gives have the fastest algorithm for a product of flops operations, whose result has so many bytes; into is the product by
// the algorithm that have has by then, written to d: the result's own memory may be in use.
func (e *Engine) compete(what string, have *product, flops float64, bytes int, into func(d Ptr) Work) error {
	if e.Deterministic || flops < fewestFLOPs {
		return nil
	}
	algos, err := e.blas.choices(what, have, competitors)
	if err != nil || len(algos) == 1 {
		return err
	}
	d, err := e.Alloc(bytes)
	if err != nil {
		return nil // the library's first will do
	}
	var field []contender
	for _, a := range algos {
		field = append(field, contender{algo: a})
	}
	work, times := into(d), min(burst, max(1, int(burstFLOPs/flops)))
	for range rounds {
		for i := range field {
			have.algo = field[i].algo
			ms, err := e.timeOf(work, times)
			if err != nil {
				return err
			}
			field[i].ms += ms
		}
		slices.SortStableFunc(field, func(a, b contender) int { return cmp.Compare(a.ms, b.ms) })
		field = slices.DeleteFunc(field, func(c contender) bool { return c.ms > behind*field[0].ms })
	}
	have.algo = field[0].algo
	return e.Free(d)
}

// timeOf is how long work takes n times, after one more, in milliseconds.
func (e *Engine) timeOf(work Work, n int) (ms float32, err error) {
	var events [2]*Event
	for i := range events {
		if events[i], err = e.NewEvent(true); err != nil {
			return 0, err
		}
		defer events[i].Close()
	}
	for i := range n + 1 {
		if err := work(); err != nil {
			return 0, err
		}
		if i == 0 {
			if err := e.Stream.Record(events[0]); err != nil {
				return 0, err
			}
		}
	}
	if err := e.Stream.Record(events[1]); err != nil {
		return 0, err
	}
	if err := events[1].Sync(); err != nil {
		return 0, err
	}
	return events[1].Since(events[0])
}
