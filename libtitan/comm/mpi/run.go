// Package mpi runs each rank of a job in a process of its own, started by mpirun or srun, over Open MPI, which is
// loaded at run time: [Run] is one rank. Heads of messages say what comes; bodies move between the ranks' own buffers.
package mpi

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"titan/libtitan/comm"
	"titan/libtitan/exit"
)

// linger is how long a rank of a failed job waits for the others to learn it before it ends: mpirun kills them then.
const linger = time.Second

// threadFunneled is MPI_THREAD_FUNNELED: one thread makes all calls.
const threadFunneled = 1

// Check reports why this process cannot be a rank: how it was started, a variable, a library that is not there.
func Check(getenv func(string) string) error {
	l, err := comm.Launched(getenv)
	if err != nil {
		return err
	}
	switch {
	case l.By == "":
		return exit.Usage.Errorf("no launcher started this process: start the ranks with mpirun -n N, or srun --mpi=pmix -n N")
	case l.By == "torchrun":
		return exit.Usage.Errorf("torchrun started %v, but its ranks cannot join Open MPI: start them with mpirun -n %d, or srun --mpi=pmix -n %d", l, l.Size, l.Size)
	case l.By == "srun" && getenv("PMIX_RANK") == "":
		return exit.Usage.Errorf("srun started %v without PMIx: use srun --mpi=pmix", l)
	}
	_, err = open()
	return err
}

// Run makes this process a rank, calls f, and returns its error, or the error of the rank that failed first. After an
// error the process must exit with a status that is not 0: MPI is not finalized then, so mpirun ends what is left.
// It can be called once in a process.
func Run(ctx context.Context, o comm.Options, f func(ctx context.Context, c comm.Comm) error) error {
	if err := Check(os.Getenv); err != nil {
		return err
	}
	timeout := cmp.Or(o.Timeout, comm.DefaultTimeout)
	w, ended, err := start(ctx, timeout)
	if err != nil {
		return err
	}
	c := comm.New(w, w.size, o)
	return w.end(call(ctx, c, f), timeout, ended)
}

// call runs the rank.
func call(ctx context.Context, c comm.Comm, f func(ctx context.Context, c comm.Comm) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = exit.Bug.Errorf("rank %d: bug: %v (please report this)", c.Rank(), v)
		}
	}()
	return f(ctx, c)
}

// start starts Open MPI, within a time, and the pump. ended gets the error of MPI_Finalize when the pump has stopped.
func start(ctx context.Context, timeout time.Duration) (w *wire, ended chan error, err error) {
	ready := make(chan error, 1)
	ended = make(chan error, 1)
	w = &wire{}
	go func() {
		runtime.LockOSThread() // for good: the thread is MPI's main thread
		err := w.init()
		ready <- err
		if err != nil {
			return
		}
		if err := w.run(); err != nil {
			w.inbox.Fail(fmt.Errorf("rank %d: %w", w.me, err))
			return
		}
		ended <- w.lib.call("MPI_Finalize", w.lib.finalize)
	}()
	select {
	case err = <-ready:
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-time.After(timeout):
		err = exit.Lost.Errorf("MPI_Init: not all ranks have come after %v", timeout)
	}
	return w, ended, err
}

// init fills w from MPI.
func (w *wire) init() error {
	l, err := open()
	if err != nil {
		return err
	}
	var provided, rank, size int32
	if err := l.call("MPI_Init_thread", l.initThread, 0, 0, threadFunneled, uintptr(unsafe.Pointer(&provided))); err != nil {
		return err
	}
	if err := l.call("MPI_Comm_rank", l.commRank, l.world, uintptr(unsafe.Pointer(&rank))); err != nil {
		return err
	}
	if err := l.call("MPI_Comm_size", l.commSize, l.world, uintptr(unsafe.Pointer(&size))); err != nil {
		return err
	}
	if err := l.call("MPI_Comm_set_errhandler", l.setErrhandler, l.world, l.errorsReturn); err != nil {
		return err
	}
	w.me, w.size = int(rank), int(size)
	w.sent = make([]uint64, size)
	w.pump = &pump{lib: l, inbox: comm.NewInbox(int(size)), receive: w.take, wake: make(chan struct{}, 1)}
	launch, err := comm.Launched(os.Getenv)
	if err == nil && (launch.Size != w.size || launch.Rank != w.me) {
		err = exit.Lost.Errorf("%s started %v, but Open MPI made it rank %d of %d: is mpirun of the same Open MPI as libmpi?", launch.By, launch, w.me, w.size)
	}
	return err
}

// end tells the others that this rank has ended, waits until they have too, and finalizes MPI when all is well.
func (w *wire) end(err error, timeout time.Duration, ended <-chan error) error {
	if err != nil {
		w.Fail(err)
	}
	w.postAll([]byte{isEnd})
	if err == nil {
		err = w.inbox.AwaitOthers(w.me, timeout, w.inbox.Failed())
	}
	if err == nil {
		w.do(func() error { w.stop = true; return nil })
		return <-ended
	}
	w.Fail(err)
	_ = w.inbox.AwaitOthers(w.me, linger, nil)
	return err
}
