package nccl

import (
	"encoding/binary"
	"sync"

	"titan/libtitan/exit"
)

// Bodies move one at a time in the whole job, in turns that rank 0 gives: two ends that disagreed on what comes next
// would wait for each other for ever. Training moves tensors by collectives and not in this way; what does come in turns is
// what a checkpoint gathers, to one rank.

// turn is a body on its way: the number is its sender's.
type turn struct {
	from, to int
	number   uint64
}

func (t turn) frame(kind byte) []byte {
	h := binary.AppendUvarint([]byte{kind}, uint64(t.from))
	return binary.AppendUvarint(binary.AppendUvarint(h, uint64(t.to)), t.number)
}

// turns are rank 0's list of those that wait; the first has its turn.
type turns struct {
	*wire
	mu    sync.Mutex
	queue []turn
}

func (t *turns) ask(next turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.queue = append(t.queue, next); len(t.queue) == 1 {
		t.give()
	}
}

func (t *turns) done(was turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) == 0 || t.queue[0] != was {
		t.Fail(exit.Bug.Errorf("rank 0: %v is done out of turn", was))
		return
	}
	if t.queue = t.queue[1:]; len(t.queue) > 0 {
		t.give()
	}
}

func (t *turns) give() {
	t.tell(t.queue[0].from, isGo, t.queue[0])
	t.tell(t.queue[0].to, isGo, t.queue[0])
}

// tell brings a turn to a rank, which may be this one.
func (w *wire) tell(to int, kind byte, t turn) {
	if to == w.me {
		w.turn(kind, t)
		return
	}
	w.send(to, t.frame(kind))
}

// turn takes a frame about a turn.
func (w *wire) turn(kind byte, t turn) {
	switch {
	case kind == isAsk && w.me == 0:
		w.turns.ask(t)
	case kind == isDone && w.me == 0:
		w.turns.done(t)
	case kind == isGo && (t.from == w.me || t.to == w.me):
		w.bodies.start(t)
	default:
		w.Fail(exit.Bug.Errorf("rank %d: a frame of kind %d for %v", w.me, kind, t))
	}
}

// bodies are those that this rank gives and takes.
type bodies struct {
	*wire
	mu     sync.Mutex
	last   uint64            // number given
	given  map[uint64]body   // by number
	wanted map[turn]body     // by what is to come
	moves  chan func() error // for the goroutine that moves them
	move   func(t turn, b []byte) error
}

// body is memory that is this rank's until done is closed.
type body struct {
	data []byte
	done chan struct{}
}

// offer keeps a body until its receiver asks for it.
func (b *bodies) offer(data []byte, done chan struct{}) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last++
	b.given[b.last] = body{data, done}
	return b.last
}

// ask asks for a body into dst; the channel is closed when it is there.
func (b *bodies) ask(from int, number uint64, dst []byte) <-chan struct{} {
	t := turn{from, b.me, number}
	done := make(chan struct{})
	b.mu.Lock()
	b.wanted[t] = body{dst, done}
	b.mu.Unlock()
	b.tell(0, isAsk, t)
	return done
}

// start moves a body whose turn has come.
func (b *bodies) start(t turn) {
	b.mu.Lock()
	what, ok := b.given[t.number]
	if t.to == b.me {
		what, ok = b.wanted[t]
		delete(b.wanted, t)
	} else {
		delete(b.given, t.number)
	}
	b.mu.Unlock()
	if !ok {
		b.Fail(exit.Bug.Errorf("rank %d: no body for %v", b.me, t))
		return
	}
	b.moves <- func() error { // with room to spare: turns come one at a time
		if err := b.move(t, what.data); err != nil {
			return err
		}
		close(what.done)
		if t.to == b.me {
			b.tell(0, isDone, t)
		}
		return nil
	}
}
