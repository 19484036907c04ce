package comm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"titan/libtitan/dtype"
	"titan/libtitan/exit"
)

// rank is a Comm over a Wire.
type rank struct {
	wire  Wire
	me    int
	world Group
	log   *slog.Logger
	ring  ring

	mu      sync.Mutex
	timeout time.Duration  // of calls that begin now
	count   map[string]int // collectives begun, by group
}

// New makes the Comm of one of size ranks.
func New(w Wire, size int, o Options) Comm {
	r := &rank{wire: w, me: w.Rank(), world: World(size), timeout: o.Timeout, log: o.Log, count: map[string]int{}}
	if r.timeout == 0 {
		r.timeout = DefaultTimeout
	}
	if r.log == nil {
		r.log = slog.Default()
	}
	return r
}

func (r *rank) Rank() int { return r.me }
func (r *rank) Size() int { return len(r.world.Ranks) }

// errLate is the cause of a context that a call waited under for too long.
var errLate = errors.New("late")

func (r *rank) SetTimeout(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timeout = d
}

// within bounds a call by the timeout.
func (r *rank) within(ctx context.Context) (context.Context, context.CancelFunc, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ctx, stop := context.WithTimeoutCause(ctx, r.timeout, errLate)
	return ctx, stop, r.timeout
}

// fail ends the job with err. The first rank to fail gives all others its error.
func (r *rank) fail(err error) error {
	r.wire.Fail(err)
	if first := r.wire.Inbox().Err(); first != nil {
		err = first
	}
	if code := exit.Kind(exit.Code(err)); code == exit.Lost || code == exit.Bug {
		r.ring.dump(r.log, r.me)
	}
	return err
}

// has checks that a peer is a rank.
func (r *rank) has(peer int) error {
	if peer < 0 || peer >= r.Size() {
		return exit.Bug.Errorf("no rank %d of %d", peer, r.Size())
	}
	return nil
}

// address is a message's channel: tags do not meet the groups of collectives.
func address(tag string) string { return "tag " + tag }

func (r *rank) Send(ctx context.Context, to int, tag string, data []byte) error {
	e := &entry{op: "send", what: tag, place: "to rank " + strconv.Itoa(to), bytes: len(data), state: "done"}
	r.ring.add(e)
	if err := r.has(to); err != nil {
		return r.fail(fmt.Errorf("rank %d: send %s: %w", r.me, tag, err))
	}
	if err := r.wire.Inbox().Err(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return r.fail(context.Cause(ctx))
	}
	data = bytes.Clone(data)
	if to == r.me {
		r.wire.Inbox().Put(to, address(tag), note(data))
		return nil
	}
	r.wire.Post(to, address(tag), "", data)
	return nil
}

func (r *rank) Recv(ctx context.Context, from int, tag string, data []byte) error {
	e := &entry{op: "recv", what: tag, place: "from rank " + strconv.Itoa(from), bytes: len(data), state: "waits"}
	r.ring.add(e)
	ctx, stop, timeout := r.within(ctx)
	defer stop()
	err := r.recv(ctx, from, tag, data)
	if err == nil {
		r.ring.set(e, "done")
		return nil
	}
	r.ring.set(e, err.Error())
	switch err {
	case errLate:
		err = exit.Lost.Errorf("rank %d: recv %s: nothing from rank %d after %v", r.me, tag, from, timeout)
	case errLeft:
		err = exit.Lost.Errorf("rank %d: recv %s: rank %d has ended without sending it", r.me, tag, from)
	}
	return r.fail(err)
}

func (r *rank) recv(ctx context.Context, from int, tag string, data []byte) error {
	if err := r.has(from); err != nil {
		return fmt.Errorf("rank %d: recv %s: %w", r.me, tag, err)
	}
	m, err := r.wire.Inbox().Take(ctx, from, address(tag))
	if err != nil {
		return err
	}
	if m.Size() != len(data) {
		m.Close()
		return exit.Bug.Errorf("rank %d: recv %s from rank %d: %d bytes came, %d were expected", r.me, tag, from, m.Size(), len(data))
	}
	return m.Read(ctx, data)
}

func (r *rank) Sum(ctx context.Context, data []float64) error {
	return r.AllReduce(ctx, r.world, "sum", dtype.Float64, Sum, bytesOf(data))
}

func (r *rank) Barrier(ctx context.Context) error {
	c := r.begin(ctx, r.world, "barrier", "", "", 0)
	none := func(int) []byte { return nil }
	return c.end(c.meet(none, func(int) int { return 0 }))
}

// note is a message of a rank to itself.
type note []byte

func (n note) Head() string                             { return "" }
func (n note) Size() int                                { return len(n) }
func (n note) Read(_ context.Context, dst []byte) error { copy(dst, n); return nil }
func (n note) View(context.Context) ([]byte, error)     { return n, nil }
func (n note) Close()                                   {}
