package train

import (
	"time"

	"titan/libtitan/exit"
)

// saver is a rank's part in saving. Rank 0's writes; the others' only lend what they hold.
type saver struct {
	from, copy *state        // what is written: the rank's own state, or a copy of it beside which training goes on
	done       chan struct{} // closed when the write under way has ended; nil: none is under way
	err        error         // of the last write that ended
}

// stage copies what the rank saves; the copy's memory is kept for the next save.
func (k *rank) stage() {
	s := &k.saver
	if s.copy == nil {
		s.copy = newState()
	}
	for _, h := range k.held {
		if !h.First {
			continue
		}
		fqn := h.Param.FQN
		for _, list := range [][2]map[string][]float32{{s.copy.params, k.state.params}, {s.copy.m, k.state.m}, {s.copy.v, k.state.v}} {
			dst, src := list[0], list[1][fqn]
			if dst[fqn] == nil {
				dst[fqn] = make([]float32, len(src))
			}
			k.engine.For(len(src), 1<<18, func(lo, hi int) { copy(dst[fqn][lo:hi], src[lo:hi]) })
		}
	}
	s.from = s.copy
}

// start runs write in the background. The one before must have ended.
func (s *saver) start(write func() error) {
	done := make(chan struct{})
	s.done = done
	go func() {
		defer close(done)
		defer func() {
			if v := recover(); v != nil {
				s.err = exit.Bug.Errorf("checkpoint: bug: %v (please report this)", v)
			}
		}()
		s.err = write()
	}()
}

// wait ends when no write is under way, with the error of the last.
func (s *saver) wait() error {
	if s.done != nil {
		<-s.done
		s.done = nil
	}
	return s.err
}

// ended waits for a time until no write is under way, and tells whether that is so.
func (s *saver) ended(within time.Duration) bool {
	if s.done == nil {
		return true
	}
	select {
	case <-s.done:
		s.done = nil
		return true
	case <-time.After(within):
		return false
	}
}

// failed is the error of a write that has ended, without waiting for one that has not.
func (s *saver) failed() error {
	select {
	case <-s.done:
		return s.wait()
	default:
		return nil
	}
}
