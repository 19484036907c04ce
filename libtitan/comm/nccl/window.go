package nccl

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"

	"titan/libtitan/comm"
	"titan/libtitan/device/cuda"
	"titan/libtitan/exit"
)

// Windows are memory that NCCL knows on all members of a group, at one size. A gather within one, each rank's part in
// its place, is copied from GPU to GPU by copy engines, which need no multiprocessor and so do not wait for kernels.

// WindowsVar set to 0 has windows be plain memory, and gathers in them plain: for comparisons.
const WindowsVar = "TITAN_WINDOWS"

// window is memory registered with a communicator of its own.
type window struct {
	cuda.Span
	group  string // its key
	handle uintptr
	win    uintptr // ncclWindow_t
}

// ask is the window that a rank wants.
type ask struct {
	Groups []comm.Group // one or none
	Bytes  int
	Able   bool
}

// OpenWindow takes bytes of memory in which gathers of g go by copy engines, where NCCL can; what is in it is undefined.
// All ranks call it together, those without a window with no bytes; members of a group ask for the same.
func (r *Rank) OpenWindow(ctx context.Context, g comm.Group, bytes int) (cuda.Ptr, error) {
	mine := ask{Bytes: bytes, Able: r.lib.memAlloc != 0 && os.Getenv(WindowsVar) != "0"}
	if bytes > 0 {
		mine.Groups = []comm.Group{g}
	}
	all, err := exchange(ctx, r, "windows", mine)
	if err != nil {
		return 0, err
	}
	if err := sameWindows(all); err != nil {
		return 0, err
	}
	if slices.ContainsFunc(all, func(a ask) bool { return !a.Able }) {
		r.log.Debug(fmt.Sprintf("gathers are not done by copy engines: that needs NCCL 2.28 on all ranks, and %s not 0: NCCL is %d here", WindowsVar, r.lib.version))
		return r.dev.Alloc(bytes)
	}
	var groups []comm.Group
	for _, a := range all {
		groups = append(groups, a.Groups...)
	}
	var p cuda.Ptr
	for _, round := range roundsOf(groups) {
		at, err := r.windowRound(round, bytes)
		if err != nil {
			return 0, err
		}
		p = max(p, at) // it is in one of the rounds
	}
	return p, nil
}

// sameWindows checks that the members of a group ask for one window.
func sameWindows(all []ask) error {
	groups := make([][]comm.Group, len(all))
	for i, a := range all {
		groups[i] = a.Groups
	}
	if err := agree(groups); err != nil {
		return err
	}
	for i, a := range all {
		for _, g := range a.Groups {
			for _, member := range g.Ranks {
				if all[member].Bytes != a.Bytes {
					return exit.Bug.Errorf("rank %d wants a window of %d bytes for %v, rank %d of %d", i, a.Bytes, g, member, all[member].Bytes)
				}
			}
		}
	}
	return nil
}

// windowRound opens the windows of groups that share no rank, and gives this rank's, 0 if it is in none.
func (r *Rank) windowRound(round []comm.Group, bytes int) (cuda.Ptr, error) {
	color, key, mine := r.colorIn(round)
	how := newConfig()
	how.policy = zeroCTA
	handle, err := r.split(color, key, how)
	if err != nil || mine < 0 {
		return 0, err
	}
	w := &window{Span: cuda.Span{Bytes: bytes}, group: keyOf(round[mine]), handle: handle}
	err = r.patiently("open a window of "+round[mine].String(), func() error { return r.register(w, key, len(round[mine].Ranks)) })
	if err != nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.windows = append(r.windows, w)
	return w.P, nil
}

// register takes the memory, makes it known, and gathers a little in it: what NCCL makes at the first gather is made then.
func (r *Rank) register(w *window, me, members int) error {
	var p uintptr
	if err := r.lib.check(fmt.Sprintf("ncclMemAlloc of %d MiB", w.Bytes>>20), call(r.lib.memAlloc, uintptr(ref(&p)), uintptr(w.Bytes))); err != nil {
		return err
	}
	w.P = cuda.Ptr(p)
	const symmetric = 1
	if err := r.lib.check("ncclCommWindowRegister", call(r.lib.register, w.handle, p, uintptr(w.Bytes), uintptr(ref(&w.win)), symmetric)); err != nil {
		return err
	}
	s, err := r.dev.NewStream(false)
	if err != nil {
		return err
	}
	part := w.Bytes / members
	mine := uintptr(w.P) + uintptr(me*part)
	err = r.together([]ncclCall{{"ncclAllGather", r.lib.allGather, []uintptr{mine, uintptr(w.P), uintptr(part), bytesType, w.handle, s.Handle()}}})
	return cmp.Or(err, s.Sync(), s.Close())
}

// CloseWindow gives the memory of a window back, once nothing is gathered in it.
func (r *Rank) CloseWindow(p cuda.Ptr) error {
	r.mu.Lock()
	at := slices.IndexFunc(r.windows, func(w *window) bool { return w.P == p })
	if at < 0 {
		r.mu.Unlock()
		return r.dev.Free(p)
	}
	w := r.windows[at]
	r.windows = slices.Delete(r.windows, at, at+1)
	r.mu.Unlock()
	if err := r.lib.check("ncclCommWindowDeregister", call(r.lib.deregister, w.handle, w.win)); err != nil {
		return err
	}
	return r.lib.check("ncclMemFree", call(r.lib.memFree, uintptr(w.P)))
}

// windowOf is the communicator by which a tensor is gathered: that of the window in which it lies, if it does and this
// rank's part is in its place, else the group's.
func (b *binding) windowOf(t cuda.Gathered) uintptr {
	b.mu.Lock()
	defer b.mu.Unlock()
	first, last := t.Out[0].P, t.Out[len(t.Out)-1]
	for _, w := range b.windows {
		inside := w.P <= first && last.P+cuda.Ptr(last.Bytes) <= w.P+cuda.Ptr(w.Bytes)
		if inside && w.group == keyOf(b.Group) && t.Mine.P == t.Out[b.me].P {
			return w.handle
		}
	}
	return b.handle
}
