package comm

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"titan/libtitan/exit"
)

// errLeft is why nothing more comes from a rank.
var errLeft = errors.New("has ended")

// Inbox holds the messages that came for a rank until they are taken. An engine puts them in.
type Inbox struct {
	mu     sync.Mutex
	queues map[slot]*queue
	cause  error
	failed chan struct{}   // closed when cause is set
	left   []chan struct{} // by rank: closed when it has ended
}

type slot struct {
	from    int
	channel string
}

// queue has messages or takers, never both, and is dropped when it has neither.
type queue struct {
	messages []Message
	takers   []chan Message
}

// NewInbox makes the inbox of one of size ranks.
func NewInbox(size int) *Inbox {
	b := &Inbox{queues: map[slot]*queue{}, failed: make(chan struct{}), left: make([]chan struct{}, size)}
	for i := range b.left {
		b.left[i] = make(chan struct{})
	}
	return b
}

// Put adds a message.
func (b *Inbox) Put(from int, channel string, m Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := slot{from, channel}
	q := b.queue(s)
	if len(q.takers) == 0 {
		q.messages = append(q.messages, m)
		return
	}
	q.takers[0] <- m // has room for one
	q.takers = q.takers[1:]
	b.drop(s)
}

// Take waits for the next message of a channel. One that is there is taken even when ctx has ended.
func (b *Inbox) Take(ctx context.Context, from int, channel string) (Message, error) {
	if err := b.Err(); err != nil {
		return nil, err
	}
	s := slot{from, channel}
	b.mu.Lock()
	q := b.queue(s)
	if len(q.messages) > 0 {
		m := q.messages[0]
		q.messages = q.messages[1:]
		b.drop(s)
		b.mu.Unlock()
		return m, nil
	}
	taker := make(chan Message, 1)
	q.takers = append(q.takers, taker)
	b.mu.Unlock()
	select {
	case m := <-taker:
		return m, nil
	case <-ctx.Done():
	case <-b.failed:
	case <-b.left[from]:
	}
	b.mu.Lock()
	q.takers = slices.DeleteFunc(q.takers, func(t chan Message) bool { return t == taker })
	b.drop(s)
	b.mu.Unlock()
	select {
	case m := <-taker: // it came in between
		return m, nil
	default:
		return nil, b.why(ctx)
	}
}

// Fail makes every wait end with err; the first counts.
func (b *Inbox) Fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cause == nil {
		b.cause = err
		close(b.failed)
	}
}

// Leave says that nothing more comes from a rank, which has ended well.
func (b *Inbox) Leave(from int) { close(b.left[from]) }

// Err is why the job has failed, nil while it goes on.
func (b *Inbox) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cause
}

// Failed is closed when the job has failed.
func (b *Inbox) Failed() <-chan struct{} { return b.failed }

// Left is closed when a rank has ended well.
func (b *Inbox) Left(rank int) <-chan struct{} { return b.left[rank] }

// AwaitOthers waits until all ranks but me have ended, at most for a time, or until failed is closed, which may be nil.
func (b *Inbox) AwaitOthers(me int, timeout time.Duration, failed <-chan struct{}) error {
	expired := time.After(timeout)
	for r, left := range b.left {
		if r == me {
			continue
		}
		select {
		case <-left:
		case <-failed:
			return b.Err()
		case <-expired:
			return exit.Lost.Errorf("rank %d: rank %d has not ended after %v", me, r, timeout)
		}
	}
	return nil
}

// Await waits until done is closed; it gives up when giveUp is closed, which may be nil.
func (b *Inbox) Await(ctx context.Context, done, giveUp <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	case <-b.failed:
	case <-giveUp:
	}
	select {
	case <-done:
		return nil
	default:
		return b.why(ctx)
	}
}

// why is the reason that a wait ended without what it waited for.
func (b *Inbox) why(ctx context.Context) error {
	if err := b.Err(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errLeft
}

func (b *Inbox) queue(s slot) *queue {
	q := b.queues[s]
	if q == nil {
		q = &queue{}
		b.queues[s] = q
	}
	return q
}

func (b *Inbox) drop(s slot) {
	if q := b.queues[s]; q != nil && len(q.messages)+len(q.takers) == 0 {
		delete(b.queues, s)
	}
}
