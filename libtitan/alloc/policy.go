package alloc

import (
	"fmt"
	"slices"
)

// Policy says when a freed block that other streams use becomes reusable.
type Policy uint8

// The policies.
const (
	// Hold keeps it allocated until its stream has waited for the others, as TORCH_NCCL_AVOID_RECORD_STREAMS=1 and
	// PyTorch from 2.8 on do with the buffers of collectives. No event is recorded.
	Hold Policy = iota
	// RecordStream records an event on each other stream when the block is freed, and looks at them at each later Malloc.
	RecordStream
	// SameStream runs everything on one stream, whose order makes every reuse safe.
	SameStream
)

// Policies are their names in cli.md.
var Policies = []string{"hold", "record-stream", "same-stream"}

func (p Policy) String() string { return Policies[p] }

// queue holds the frees that wait for marks of one stream, the oldest first.
type queue struct {
	stream Stream
	frees  []waiting
}

type waiting struct {
	mark  Mark
	block *Block
}

// Use says that work on stream s, queued after all that was queued there before, needs b.
func (a *Allocator) Use(b *Block, s Stream) {
	a.mu.Lock()
	defer a.mu.Unlock()
	own := b.Stream()
	if s == own || a.options.Policy == SameStream {
		return
	}
	if !slices.Contains(b.uses, s) {
		b.uses = append(b.uses, s)
	}
	if a.options.Policy == Hold {
		key := [2]Stream{own, s}
		a.users[key] = append(a.users[key], b)
	}
	a.emit(Event{Action: Use, Addr: b.addr, Size: b.requested, Stream: own, Other: s, Owner: b.owner})
}

// Wait says that stream s has been made to wait for what is queued on stream on, but for the latest uses there of
// blocks of s: later is how many of those it does not wait for.
func (a *Allocator) Wait(s, on Stream, later int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.emit(Event{Action: Wait, Size: int64(later), Stream: s, Other: on})
	key := [2]Stream{s, on}
	done := max(0, len(a.users[key])-later)
	waited, left := a.users[key][:done], slices.Clone(a.users[key][done:])
	a.users[key] = left
	for _, b := range waited {
		if slices.Contains(left, b) {
			continue
		}
		b.uses = slices.DeleteFunc(b.uses, func(u Stream) bool { return u == on })
		if b.dropped && len(b.uses) == 0 {
			b.dropped = false
			a.release(b)
		}
	}
}

// Free gives b back, to be reused when the policy allows it.
func (a *Allocator) Free(b *Block) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case b.state != allocated || b.dropped:
		return fmt.Errorf("alloc: a block at %#x of %d bytes is freed twice", b.addr, b.size)
	case len(b.uses) == 0:
		a.release(b)
		return nil
	case a.options.Policy == Hold:
		b.dropped = true
		return nil
	}
	a.request(b)
	return a.deferFree(b)
}

// Defer frees b and leaves it pending until Complete: for a caller who knows by other means when that is.
func (a *Allocator) Defer(b *Block) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if b.state != allocated || b.dropped {
		return fmt.Errorf("alloc: a block at %#x of %d bytes is freed twice", b.addr, b.size)
	}
	a.request(b)
	return nil
}

// Pending reports whether b's free was requested and has not completed.
func (a *Allocator) Pending(b *Block) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return b.state == pending
}

// Complete makes a block that Defer left reusable.
func (a *Allocator) Complete(b *Block) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if b.state != pending || b.marks > 0 {
		return fmt.Errorf("alloc: a block at %#x of %d bytes is not pending", b.addr, b.size)
	}
	a.complete(b)
	return nil
}

// deferFree records the present end of each stream that uses b.
func (a *Allocator) deferFree(b *Block) error {
	for _, s := range b.uses {
		m, err := a.device.Record(s)
		if err != nil {
			return fmt.Errorf("alloc: free at %#x: %w", b.addr, err)
		}
		q := a.queue(s)
		q.frees = append(q.frees, waiting{m, b})
		b.marks++
	}
	b.uses = nil
	return nil
}

func (a *Allocator) queue(s Stream) *queue {
	for _, q := range a.queues {
		if q.stream == s {
			return q
		}
	}
	q := &queue{stream: s}
	a.queues = append(a.queues, q)
	return q
}

// poll completes the frees at the front of each queue whose marks have passed.
func (a *Allocator) poll() error {
	for _, q := range a.queues {
		for len(q.frees) > 0 {
			passed, err := q.frees[0].mark.Passed()
			if err != nil {
				return fmt.Errorf("alloc: %w", err)
			}
			if !passed {
				break
			}
			a.pass(q)
		}
	}
	return nil
}

// drain waits for all marks.
func (a *Allocator) drain() error {
	for _, q := range a.queues {
		for len(q.frees) > 0 {
			if err := q.frees[0].mark.Wait(); err != nil {
				return fmt.Errorf("alloc: %w", err)
			}
			a.pass(q)
		}
	}
	return nil
}

// pass takes the first free off q; its block is reusable when all its marks have passed.
func (a *Allocator) pass(q *queue) {
	w := q.frees[0]
	q.frees = q.frees[1:]
	w.mark.Release()
	if len(q.frees) == 0 {
		q.frees = nil
	}
	if w.block.marks--; w.block.marks == 0 {
		a.complete(w.block)
	}
}

// release frees b at once: one event of two names.
func (a *Allocator) release(b *Block) {
	a.meter.Move(Freed(b.requested, b.size))
	a.note(FreeRequested, b)
	a.note(FreeCompleted, b)
	a.toPool(b)
}

// request is the owner's letting go of a block that is not reusable yet.
func (a *Allocator) request(b *Block) {
	a.meter.Move(Deferred(b.size))
	a.note(FreeRequested, b)
	b.state = pending
}

// complete is the end of a free that was requested.
func (a *Allocator) complete(b *Block) {
	a.meter.Move(Completed(b.requested, b.size))
	a.note(FreeCompleted, b)
	a.toPool(b)
}

func (a *Allocator) toPool(b *Block) {
	b.state, b.uses, b.owner = cached, nil, ""
	b.merge()
}

func (a *Allocator) note(what Action, b *Block) {
	a.emit(Event{Action: what, Addr: b.addr, Size: b.requested, Stream: b.Stream(), Owner: b.owner})
}
