// Package nccl runs each rank of a job in a process of its own, with a GPU of its own, over NCCL, which is loaded at run
// time: [Run] is one rank, [Start] starts those of this machine where no launcher did. A [Rank] moves the device's
// memory by NCCL's collectives, each put on a stream; and it is a [comm.Comm] for what the host has to say, whose long
// bodies go from GPU to GPU too.
//
// Every collective on the device has a name. When one does not end in time, when NCCL reports an error, or when a rank
// is gone, all ranks' collectives are aborted and the job ends with that name.
package nccl

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"titan/libtitan/comm"
	"titan/libtitan/device/cuda"
	"titan/libtitan/exit"
)

// linger is how long a rank of a failed job waits for the others to learn it, and for its own collectives to end.
const linger = time.Second

// Rank is one rank's end.
type Rank struct {
	comm.Comm
	dev     *cuda.Device
	lib     *lib
	wire    *wire
	log     *slog.Logger
	timeout atomic.Int64 // of a collective, nanoseconds
	rounds  atomic.Int64 // how often Sync was called
	words   *cuda.Host   // the lanes' counters

	mu      sync.Mutex
	comms   []uintptr // ncclComm_t, all of them, the world's first
	groups  map[string]*communicator
	windows []*window
	lanes   map[*cuda.Stream]*lane
	order   []*lane
}

// Check reports why this process cannot be a rank: how it was started, a library that is not there.
func Check(getenv func(string) string) error {
	if _, err := placeOf(getenv); err != nil {
		return err
	}
	_, err := open()
	return err
}

// Connections is CUDA_DEVICE_MAX_CONNECTIONS: how many streams run side by side at most. Streams that share a connection
// wait for each other, and one may wait for another rank. CUDA takes 8 unless told otherwise; more streams than 32 it
// cannot tell apart. It is set before the driver starts.
func Connections(log *slog.Logger) error {
	const name = "CUDA_DEVICE_MAX_CONNECTIONS"
	switch os.Getenv(name) {
	case "":
		return os.Setenv(name, "32")
	case "1":
		log.Warn(name + "=1: collectives will not run beside kernels, and pipelines may hang: unset it")
	}
	return nil
}

// Run makes this process a rank on the device, calls f, and returns its error, or the error of the rank that failed
// first. After an error the process must exit: collectives may still be under way. f runs with the device entered.
func Run(ctx context.Context, d *cuda.Device, o comm.Options, f func(ctx context.Context, r *Rank) error) error {
	p, err := placeOf(os.Getenv)
	if err != nil {
		return err
	}
	if o.Timeout == 0 {
		o.Timeout = comm.DefaultTimeout
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return runAt(ctx, p, o, inline, func(ctx context.Context, w *wire, c comm.Comm) error {
		r := &Rank{Comm: c, dev: d, wire: w, log: o.Log, groups: map[string]*communicator{}, lanes: map[*cuda.Stream]*lane{}}
		r.timeout.Store(int64(o.Timeout))
		leave, err := d.Enter()
		if err != nil {
			return err
		}
		defer leave()
		if err := r.start(ctx); err != nil {
			return err
		}
		ended := make(chan struct{})
		go r.watch(ended)
		defer close(ended)
		return f(ctx, r)
	})
}

// runAt joins the ranks that meet at p, and calls f.
func runAt(ctx context.Context, p place, o comm.Options, inline int, f func(ctx context.Context, w *wire, c comm.Comm) error) error {
	peers, err := meet(ctx, p, o.Timeout)
	if err != nil {
		return err
	}
	w := newWire(p.Rank, peers, inline)
	return w.end(guarded(p, func() error { return f(ctx, w, comm.New(w, p.Size, o)) }), o.Timeout)
}

func guarded(p place, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = exit.Bug.Errorf("rank %d: bug: %v (please report this)", p.Rank, v)
		}
	}()
	return f()
}

// SetTimeout bounds the device's collectives too.
func (r *Rank) SetTimeout(d time.Duration) {
	r.Comm.SetTimeout(d)
	r.timeout.Store(int64(d))
}

// start loads NCCL on all ranks, and joins them.
func (r *Rank) start(ctx context.Context) (err error) {
	// NVLink's multicast needs fabric rights that many machines lack, and gains nothing at the sizes that training moves.
	if os.Getenv("NCCL_NVLS_ENABLE") == "" {
		os.Setenv("NCCL_NVLS_ENABLE", "0")
	}
	if r.lib, err = open(); err != nil {
		return err
	}
	const maxLanes = 64
	if r.words, err = r.dev.AllocHost(maxLanes * laneBytes); err != nil {
		return err
	}
	clear(r.words.Bytes())
	id, err := r.id(ctx)
	if err != nil {
		return err
	}
	_, err = r.join("ncclCommInitRank", func(c *uintptr) int32 {
		return call(r.lib.initRank, uintptr(ref(c)), uintptr(r.Size()), uintptr(r.Rank()), 1, uintptr(ref(&id[0])), uintptr(ref(newConfig())))
	})
	if err != nil || r.Size() == 1 {
		return err
	}
	// Bodies have a communicator of their own: what is on another must not wait for them.
	own, err := r.split(0, r.Rank(), newConfig())
	if err != nil {
		return err
	}
	return r.startBodies(own)
}

// id is what rank 0 made for the communicator of all; it also makes sure that all ranks have loaded the library.
func (r *Rank) id(ctx context.Context) ([]byte, error) {
	id := make([]byte, 128) // NCCL_UNIQUE_ID_BYTES
	all := comm.Group{Name: "start", Ranks: comm.World(r.Size()).Ranks}
	out := make([][]byte, r.Size())
	var mine []byte
	if out[0] = id; r.Rank() == 0 {
		mine = make([]byte, len(id))
		if err := r.lib.check("ncclGetUniqueId", call(r.lib.getUniqueID, uintptr(ref(&mine[0])))); err != nil {
			return nil, err
		}
	}
	return id, r.AllGather(ctx, all, "nccl id", comm.Gathered{Mine: mine, Out: out})
}

// join makes a communicator by a call that returns when all its ranks have made it. A rank that fails elsewhere, or does
// not come in time, ends the waiting.
func (r *Rank) join(what string, f func(c *uintptr) int32) (uintptr, error) {
	var c uintptr
	err := r.patiently(what, func() error { return r.lib.check(what, f(&c)) })
	if err == nil && c != 0 {
		r.mu.Lock()
		r.comms = append(r.comms, c)
		r.mu.Unlock()
	}
	return c, err
}

// patiently calls f, which may wait for other ranks inside NCCL, on a thread of its own, and gives up when the job has
// failed or time is over.
func (r *Rank) patiently(what string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		leave, err := r.dev.Enter()
		if err == nil {
			err = f()
			leave()
		}
		done <- err
	}()
	limit := time.Duration(r.timeout.Load())
	select {
	case err := <-done:
		return err
	case <-r.wire.inbox.Failed():
		return r.wire.inbox.Err()
	case <-time.After(limit):
		return exit.Lost.Errorf("rank %d: %s: other ranks have not come after %v", r.Rank(), what, limit)
	}
}

// end tells the others that this rank has ended, and waits until they have too. Communicators end with the process.
func (w *wire) end(err error, timeout time.Duration) error {
	if err != nil {
		w.Fail(err)
	}
	w.leave()
	if err == nil {
		err = w.inbox.AwaitOthers(w.me, timeout, w.inbox.Failed())
	}
	if err != nil {
		w.Fail(err)
		_ = w.inbox.AwaitOthers(w.me, linger, nil)
		err = w.inbox.Err()
	}
	for _, p := range w.peers {
		if p != nil {
			p.conn.Close()
		}
	}
	return err
}

// failed ends the job with an error of a collective on the device, unless it has ended already.
func (r *Rank) failed(err error) error {
	r.wire.Fail(err)
	return r.wire.inbox.Err()
}
