// Package local runs the ranks of a job as goroutines of one process: [Run] starts them. Nothing but [comm.Comm.Send]
// copies a message: ranks read each other's buffers while the owners wait.
package local

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"titan/libtitan/comm"
	"titan/libtitan/exit"
)

// Run calls f once for each of size ranks, all at the same time, and returns the first error; the others' context
// and their calls end with it then.
func Run(ctx context.Context, size int, f func(ctx context.Context, c comm.Comm) error) error {
	return RunWith(ctx, size, comm.Options{}, f)
}

// RunWith is Run with options.
func RunWith(ctx context.Context, size int, o comm.Options, f func(ctx context.Context, c comm.Comm) error) error {
	w := make(world, size)
	for r := range w {
		w[r] = comm.NewInbox(size)
	}
	g, ctx := errgroup.WithContext(ctx)
	for r := range size {
		g.Go(func() error {
			err := call(ctx, comm.New(&wire{w, r}, size, o), f)
			w.end(r, err)
			return err
		})
	}
	return g.Wait()
}

// call runs one rank.
func call(ctx context.Context, c comm.Comm, f func(ctx context.Context, c comm.Comm) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = exit.Bug.Errorf("rank %d: bug: %v (please report this)", c.Rank(), v)
		}
	}()
	return f(ctx, c)
}

// world is the ranks' inboxes.
type world []*comm.Inbox

// end tells all ranks that one has ended.
func (w world) end(rank int, err error) {
	for _, b := range w {
		if err != nil {
			b.Fail(err)
		} else {
			b.Leave(rank)
		}
	}
}

type wire struct {
	world
	me int
}

func (w *wire) Rank() int          { return w.me }
func (w *wire) Inbox() *comm.Inbox { return w.world[w.me] }
func (w *wire) Fail(err error)     { w.end(w.me, err) }

func (w *wire) Post(to int, channel, head string, body []byte) comm.Sent {
	m := &message{head: head, body: body, sender: w.Inbox(), from: w.me, to: to, done: make(chan struct{})}
	w.world[to].Put(w.me, channel, m)
	return m
}

// message is the sender's buffer itself. It is the receiver's from Read or View until done is closed, and the
// sender's again after that. When the job fails, state decides whether Drop or the receiver came first.
type message struct {
	head     string
	body     []byte
	sender   *comm.Inbox
	from, to int
	state    atomic.Int32
	done     chan struct{}
}

const (
	posted int32 = iota
	taken        // by the receiver
	closed       // by the sender or the receiver
)

func (m *message) Head() string { return m.head }
func (m *message) Size() int    { return len(m.body) }

func (m *message) Wait(ctx context.Context) error {
	return m.sender.Await(ctx, m.done, m.sender.Left(m.to))
}

func (m *message) Drop() {
	if !m.state.CompareAndSwap(posted, closed) {
		<-m.done
	}
}

func (m *message) View(ctx context.Context) ([]byte, error) {
	if !m.state.CompareAndSwap(posted, taken) {
		return nil, exit.Lost.Errorf("rank %d no longer gives it", m.from)
	}
	return m.body, nil
}

func (m *message) Read(ctx context.Context, dst []byte) error {
	body, err := m.View(ctx)
	if err == nil {
		copy(dst, body)
		m.Close()
	}
	return err
}

func (m *message) Close() {
	if m.state.CompareAndSwap(taken, closed) || m.state.CompareAndSwap(posted, closed) {
		close(m.done)
	}
}
