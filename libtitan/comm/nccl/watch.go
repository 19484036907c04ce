package nccl

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"titan/libtitan/device/cuda"
	"titan/libtitan/exit"
)

// entry is a collective, for errors and the log.
type entry struct {
	op, what, group string
	bytes           int // that this rank gives
}

func (e entry) String() string { return fmt.Sprintf("%s %s (%s)", e.op, e.what, e.group) }

// lane is the collectives of one stream, numbered from 1, and two counters in memory of the host to which the stream
// itself writes the number of the one that it has come to, and of the one that it has done. Graphs replay the writes too.
type lane struct {
	mu      sync.Mutex
	entries []entry
	words   []uint32
	seen    progress // by the watch
	since   time.Time
}

// laneBytes keeps lanes on cache lines of their own; started and finished are the counters' places.
const (
	laneBytes = 64
	started   = 0
	finished  = 1
)

func (l *lane) add(e entry) uint32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = append(l.entries, e)
	return uint32(len(l.entries))
}

// progress is how far a lane has come, in which round.
type progress struct {
	started, finished uint32
	round             int64
}

func (p progress) idle() bool { return p.started == p.finished }

func (l *lane) progress(round int64) progress {
	return progress{atomic.LoadUint32(&l.words[started]), atomic.LoadUint32(&l.words[finished]), round}
}

// laneOf is the lane of a stream.
func (r *Rank) laneOf(s *cuda.Stream) (*lane, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.lanes[s]; l != nil {
		return l, nil
	}
	at := len(r.order) * laneBytes
	if at+laneBytes > len(r.words.Bytes()) {
		return nil, exit.Bug.Errorf("nccl: collectives on more than %d streams", len(r.order))
	}
	l := &lane{words: cuda.HostOf[uint32](r.words, at, 2)}
	r.lanes[s] = l
	r.order = append(r.order, l)
	return l, nil
}

// mark puts the writing of a counter on the stream.
func (r *Rank) mark(l *lane, s *cuda.Stream, word int, number uint32) error {
	const noFlags = 0
	at := uintptr(unsafe.Pointer(&l.words[word])) // the host's: pinned memory has the same address on the device
	if rc := call(r.lib.writeValue, s.Handle(), at, uintptr(number), noFlags); rc != 0 {
		return fmt.Errorf("cuStreamWriteValue32: status %d", rc)
	}
	return nil
}

// tick is how often the watch looks.
const tick = 100 * time.Millisecond

// watch ends the job when a collective does not end in time, or NCCL has an error; and it aborts this rank's collectives
// when the job has failed, here or elsewhere.
func (r *Rank) watch(ended <-chan struct{}) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ended:
			return
		case <-r.wire.inbox.Failed():
			r.abort()
			return
		case now := <-ticker.C:
			if err := r.look(now); err != nil {
				r.tell()
				r.wire.Fail(err)
			}
		}
	}
}

func (r *Rank) look(now time.Time) error {
	if name, err := r.asyncError(); err != nil {
		return exit.Lost.Errorf("rank %d: %s: %w", r.Rank(), name, err)
	}
	limit := time.Duration(r.timeout.Load())
	for _, l := range r.all() {
		p := l.progress(r.rounds.Load())
		if p.idle() || p != l.seen {
			l.seen, l.since = p, now
			continue
		}
		if now.Sub(l.since) > limit {
			return exit.Lost.Errorf("rank %d: %v: not done after %v: another rank has not come to it", r.Rank(), l.current(), limit)
		}
	}
	return nil
}

func (r *Rank) all() []*lane {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.order)
}

// current is the collective that the lane is in.
func (l *lane) current() entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := int(atomic.LoadUint32(&l.words[started])); n > 0 && n <= len(l.entries) {
		return l.entries[n-1]
	}
	return entry{op: "between collectives"}
}

// asyncError is what NCCL reports of any communicator, and the collectives that are under way.
func (r *Rank) asyncError() (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.comms {
		var status int32
		if call(r.lib.asyncError, c, uintptr(ref(&status))) != 0 {
			continue
		}
		if err := r.lib.check("asynchronous error", status); err != nil {
			name := "no collective is under way"
			for _, l := range r.order {
				if !l.progress(0).idle() {
					name = l.current().String()
				}
			}
			return name, err
		}
	}
	return "", nil
}

// told is how many collectives of a lane the log gets.
const told = 8

// tell logs the last collectives of each lane that is in one.
func (r *Rank) tell() {
	for i, l := range r.all() {
		p := l.progress(0)
		if p.idle() {
			continue
		}
		l.mu.Lock()
		for n := max(1, int(p.started)-told+1); n <= min(int(p.started), len(l.entries)); n++ {
			state := "done"
			if n == int(p.started) {
				state = "under way"
			}
			e := l.entries[n-1]
			r.log.Debug("last collectives", "rank", r.Rank(), "lane", i, "call", n, "op", e.op, "what", e.what, "group", e.group, "bytes", e.bytes, "state", state)
		}
		l.mu.Unlock()
	}
}

// abort ends this rank's collectives, whatever they wait for.
func (r *Rank) abort() {
	r.mu.Lock()
	comms := r.comms
	r.comms = nil
	r.mu.Unlock()
	for _, c := range comms {
		go func() {
			leave, err := r.dev.Enter()
			if err != nil {
				return
			}
			defer leave()
			call(r.lib.abort, c)
		}()
	}
}

// Sync waits until all that was put on a stream is done, or an event has come. It ends, with the job's error, when a collective
// cannot.
func (r *Rank) Sync(ctx context.Context, what interface{ Sync() error }) error {
	r.rounds.Add(1)
	done := make(chan error, 1)
	go func() {
		leave, err := r.dev.Enter()
		if err == nil {
			err = what.Sync()
			leave()
		}
		done <- err
	}()
	var err error
	select {
	case err = <-done:
	case <-r.wire.inbox.Failed():
	case <-ctx.Done():
		r.wire.Fail(context.Cause(ctx))
	}
	if lost := r.wire.inbox.Err(); lost != nil {
		select { // for the abort to end them
		case <-done:
		case <-time.After(linger):
		}
		return lost
	}
	if err != nil {
		return r.failed(fmt.Errorf("rank %d: %w", r.Rank(), err))
	}
	return nil
}
