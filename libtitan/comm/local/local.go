// Package local runs the ranks of a job as goroutines of one process: [Run] starts them, and messages
// are copies in memory.
package local

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"

	"titan/libtitan/comm"
	"titan/libtitan/exit"
)

// Run calls f once for each of size ranks, all at the same time, and returns the first error; it cancels
// the others' context then.
func Run(ctx context.Context, size int, f func(ctx context.Context, c comm.Comm) error) error {
	w := &world{size: size, boxes: map[address]chan []byte{}}
	g, ctx := errgroup.WithContext(ctx)
	for r := range size {
		g.Go(func() (err error) {
			defer func() {
				if v := recover(); v != nil {
					err = exit.Bug.Errorf("rank %d: bug: %v (please report this)", r, v)
				}
			}()
			return f(ctx, &rank{w, r})
		})
	}
	return g.Wait()
}

type address struct {
	from, to int
	tag      string
}

type world struct {
	size  int
	mu    sync.Mutex
	boxes map[address]chan []byte
}

// box is where the message of an address waits; a tag may be used again once its message was taken.
func (w *world) box(a address) chan []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.boxes[a] == nil {
		w.boxes[a] = make(chan []byte, 1)
	}
	return w.boxes[a]
}

type rank struct {
	*world
	me int
}

func (r *rank) Rank() int { return r.me }
func (r *rank) Size() int { return r.size }

func (r *rank) Send(ctx context.Context, to int, tag string, data []byte) error {
	select {
	case r.box(address{r.me, to, tag}) <- append([]byte(nil), data...):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (r *rank) Recv(ctx context.Context, from int, tag string, data []byte) error {
	select {
	case got := <-r.box(address{from, r.me, tag}):
		if len(got) != len(data) {
			return exit.Bug.Errorf("recv %s from rank %d: %d bytes came, %d were expected", tag, from, len(got), len(data))
		}
		copy(data, got)
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Sum gathers at rank 0, which adds in rank order and sends the result to all.
func (r *rank) Sum(ctx context.Context, data []float64) error {
	const tag = "sum" // ranks call collectives in one order, and a box holds one message
	mine := bytesOf(data)
	if r.me != 0 {
		if err := r.Send(ctx, 0, tag, mine); err != nil {
			return err
		}
		return r.Recv(ctx, 0, tag, mine)
	}
	theirs := make([]float64, len(data))
	for from := 1; from < r.size; from++ {
		if err := r.Recv(ctx, from, tag, bytesOf(theirs)); err != nil {
			return err
		}
		for i, x := range theirs {
			data[i] += x
		}
	}
	for to := 1; to < r.size; to++ {
		if err := r.Send(ctx, to, tag, mine); err != nil {
			return err
		}
	}
	return nil
}

func (r *rank) Barrier(ctx context.Context) error { return r.Sum(ctx, nil) }
