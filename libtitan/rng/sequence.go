package rng

import "sync"

// Sequence hands out the tensors that a freshly seeded [Torch] would fill one after another, each as a [Fill]
// that makes any slice of it on demand. Declare the tensors in order first; the fills may then be called in any
// order and at the same time.
//
// A Mersenne Twister cannot jump. The sequence runs one ahead over the draws, without turning them into values,
// and keeps its state (2.5 KB) now and then: at most 16384 of them, 40 MiB, whatever the number of draws.
type Sequence struct {
	used  int64 // draws of the tensors declared so far
	spare *float64

	mu    sync.Mutex
	ahead *twister
	saved []*twister // at draws 0, every, 2*every, ...
	every int64
}

// Fill writes elements start, start+1, ... of a tensor into dst.
type Fill func(dst []float32, start int64)

const (
	maxSaved   = 1 << 14
	firstEvery = 1 << 18 // draws; about what one block of a file takes
)

// NewSequence starts where torch.manual_seed(seed) does.
func NewSequence(seed uint64) *Sequence {
	return &Sequence{ahead: newTwister(seed), every: firstEvery}
}

// Normal declares a tensor of n values that [Torch.Normal] fills.
func (s *Sequence) Normal(n int64, mean, std float64) Fill {
	if n < boxMuller {
		return s.scalar(n, mean, std)
	}
	first, tail := s.used, n%boxMuller
	s.used += n
	if tail != 0 {
		s.used += boxMuller
	}
	return func(dst []float32, start int64) {
		const mask = boxMuller - 1
		s.blocks(dst, start, first+start&^mask, start&^mask, n-tail, mean, std)
		if tail != 0 {
			s.blocks(dst, start, first+n, n-boxMuller, n, mean, std)
		}
	}
}

// blocks makes the blocks of 16 elements from the one at element from on, whose draws begin at draw, as far as
// they touch elements start to start+len(dst) and lie under end.
func (s *Sequence) blocks(dst []float32, start, draw, from, end int64, mean, std float64) {
	stop := start + int64(len(dst))
	if from >= min(stop, end) || from+boxMuller <= start {
		return
	}
	t := s.at(draw)
	for ; from < min(stop, end); from += boxMuller {
		var b [boxMuller]float32
		for i := range b {
			b[i] = unit(t.Uint32())
		}
		normalBlock(&b, float32(mean), float32(std))
		if from < start {
			copy(dst, b[start-from:])
		} else {
			copy(dst[from-start:], b[:])
		}
	}
}

// scalar makes a small tensor at once: its draws depend on the value kept from the small one before.
func (s *Sequence) scalar(n int64, mean, std float64) Fill {
	fresh := n
	if s.spare != nil {
		fresh--
	}
	g := Torch{s.at(s.used), s.spare}
	values := make([]float32, n)
	g.Normal(values, mean, std)
	s.used += (fresh + 1) / 2 * 4 // two values take two draws of 64 bits
	s.spare = g.spare
	return func(dst []float32, start int64) { copy(dst, values[start:]) }
}

// TruncNormal declares a tensor of n values that [Torch.TruncNormal] fills.
func (s *Sequence) TruncNormal(n int64, mean, std, a, b float64) Fill {
	first, t := s.used, newTruncated(mean, std, a, b)
	s.used += n
	return func(dst []float32, start int64) {
		draws := s.at(first + start)
		for i := range dst {
			dst[i] = t.value(draws.Uint32())
		}
	}
}

// at is a generator of its own that stands before the given draw.
func (s *Sequence) at(draw int64) *twister {
	t, at := s.before(draw)
	t.skip(draw - at)
	return &t
}

// before is the last saved state that is not after the given draw, and the draw it stands before. States up to
// there are made if need be.
func (s *Sequence) before(draw int64) (t twister, at int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for int64(len(s.saved))*s.every <= draw {
		t := *s.ahead
		s.saved = append(s.saved, &t)
		s.ahead.skip(s.every)
		if len(s.saved) == maxSaved {
			s.thin()
		}
	}
	i := draw / s.every
	return *s.saved[i], i * s.every
}

// thin drops every other saved state.
func (s *Sequence) thin() {
	for i := range maxSaved / 2 {
		s.saved[i] = s.saved[2*i]
	}
	clear(s.saved[maxSaved/2:])
	s.saved = s.saved[:maxSaved/2]
	s.every *= 2
}
