package cuda

// Products of few operations, by which of the library's algorithms they go: its first is up to a quarter slower than another there
// (on an H200 a gradient of 512 channels at 16,384 tokens: 448 TFLOP/s, the best 564), and of large ones it is as fast as any. Each
// is tried in turn, which takes a few milliseconds a product. Where bits must be the same in every run the first is taken.
const (
	competitors = 6
	fewestFLOPs = 1e9 // below, nothing is to be won
	mostFLOPs   = 2e11
	rounds      = 3
	burst       = 5 // of one algorithm in a round
)

// compete gives have the fastest algorithm for p; it reads a, b and c.
func (e *Engine) compete(p Product, have *product, a, b, c Ptr) error {
	flops := 2 * float64(p.M) * float64(p.N) * float64(p.K)
	if e.Deterministic || p.In.Size() != 2 || flops < fewestFLOPs || flops > mostFLOPs {
		return nil
	}
	algos, err := e.blas.choices(p.String(), have, competitors)
	if err != nil {
		return err
	}
	d, err := e.Alloc(p.M * p.N * p.Out.Size()) // the result's own memory may be in use
	if err != nil {
		return nil // the library's first will do
	}
	best, least := 0, float32(0)
	total := make([]float32, len(algos))
	for range rounds {
		for i := range algos {
			have.algo = algos[i]
			ms, err := e.timeOf(e.blas.bind(e.Stream, p, have, d, a, b, c), burst)
			if err != nil {
				return err
			}
			total[i] += ms
		}
	}
	for i, ms := range total {
		if i == 0 || ms < least {
			best, least = i, ms
		}
	}
	have.algo = algos[best]
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
