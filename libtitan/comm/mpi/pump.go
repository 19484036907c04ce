package mpi

import (
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"titan/libtitan/comm"
)

// MPI's tags: one for heads, and a range that bodies use in turn. MPI promises tags up to 32767.
const (
	headTag  = 1
	bodyTag  = 2
	bodyTags = 30000
)

// maxPart is the most bytes of one MPI message: its counts are C ints.
const maxPart = 1 << 30

// pump makes all MPI calls, on the one thread that it locks. It polls, for a rank must not wait inside MPI, where
// neither a context nor a timeout would end it; and it sleeps when nothing moves, for ranks may be more than cores.
type pump struct {
	lib      *lib
	inbox    *comm.Inbox
	receive  func(from int, head []byte)
	mu       sync.Mutex
	todo     []func() error
	wake     chan struct{}
	stop     bool
	requests []uintptr // MPI_Request
	flights  []*flight // by request
	indices  []int32
}

// flight is a body on its way: done is closed when its last part has arrived. It keeps the memory alive and in place.
type flight struct {
	parts int
	done  chan struct{}
	pin   runtime.Pinner
}

// do makes the pump call f.
func (p *pump) do(f func() error) {
	p.mu.Lock()
	p.todo = append(p.todo, f)
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// spins is how often the pump polls before it sleeps, about 50 us, and busySpins while bodies move, for MPI moves them in
// small pieces when it is polled. Then it sleeps for an eighth of the time that nothing was done, up to maxSleep.
const (
	spins     = 100
	busySpins = 5000
	maxSleep  = time.Millisecond
)

// run polls until stop. The caller has locked its thread.
func (p *pump) run() error {
	timer := time.NewTimer(0)
	idle, since := 0, time.Now()
	for !p.stop {
		moved, err := p.poll()
		if err != nil {
			return err
		}
		if moved {
			idle = 0
			continue
		}
		if idle++; idle == 1 {
			since = time.Now()
		}
		if idle < spins || len(p.requests) > 0 && idle < busySpins {
			syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) // the peer may wait for this core
			continue
		}
		timer.Reset(min(time.Since(since)/8, maxSleep))
		select {
		case <-p.wake:
			idle = 0
		case <-timer.C:
		}
	}
	return nil
}

// poll does what is to do and reports whether anything moved.
func (p *pump) poll() (bool, error) {
	p.mu.Lock()
	todo := p.todo
	p.todo = nil
	p.mu.Unlock()
	for _, f := range todo {
		if err := f(); err != nil {
			return false, err
		}
	}
	came, err := p.probe()
	if err != nil {
		return false, err
	}
	done, err := p.test()
	return len(todo) > 0 || came || done, err
}

// status is an MPI_Status.
type status struct {
	source, tag, err, cancelled int32
	count                       uint64
}

const anySource = ^uintptr(0) // -1

// probe receives one head, if any has come.
func (p *pump) probe() (bool, error) {
	var flag, count int32
	var s status
	l := p.lib
	err := l.call("MPI_Iprobe", l.iprobe, anySource, headTag, l.world, uintptr(unsafe.Pointer(&flag)), uintptr(unsafe.Pointer(&s)))
	if err != nil || flag == 0 {
		return false, err
	}
	if err := l.call("MPI_Get_count", l.getCount, uintptr(unsafe.Pointer(&s)), l.bytes, uintptr(unsafe.Pointer(&count))); err != nil {
		return false, err
	}
	head := make([]byte, count)
	err = l.call("MPI_Recv", l.recv, uintptr(unsafe.Pointer(unsafe.SliceData(head))), uintptr(count), l.bytes, uintptr(s.source), headTag, l.world, 0)
	if err != nil {
		return false, err
	}
	p.receive(int(s.source), head)
	return true, nil
}

// test finds the requests that are done.
func (p *pump) test() (bool, error) {
	n := len(p.requests)
	if n == 0 {
		return false, nil
	}
	for len(p.indices) < n {
		p.indices = append(p.indices, 0)
	}
	var done int32
	err := p.lib.call("MPI_Testsome", p.lib.testsome, uintptr(n), uintptr(unsafe.Pointer(&p.requests[0])),
		uintptr(unsafe.Pointer(&done)), uintptr(unsafe.Pointer(&p.indices[0])), 0)
	if err != nil || done <= 0 {
		return false, err
	}
	for _, i := range p.indices[:done] {
		p.flights[i].land()
		p.flights[i] = nil
	}
	kept := 0
	for i, f := range p.flights {
		if f != nil {
			p.flights[kept], p.requests[kept] = f, p.requests[i]
			kept++
		}
	}
	clear(p.flights[kept:])
	p.flights, p.requests = p.flights[:kept], p.requests[:kept]
	return true, nil
}

func (f *flight) land() {
	if f.parts--; f.parts == 0 {
		f.pin.Unpin()
		close(f.done)
	}
}

// start begins to move data to or from a peer under consecutive tags, and is called on the pump's thread.
func (p *pump) start(name string, fn uintptr, f *flight, data []byte, peer int, tag func(part int) int) error {
	f.parts = parts(len(data))
	f.pin.Pin(unsafe.SliceData(data))
	for part := range f.parts {
		b := data[part*maxPart : min((part+1)*maxPart, len(data))]
		var request uintptr
		err := p.lib.call(name, fn, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), p.lib.bytes,
			uintptr(peer), uintptr(tag(part)), p.lib.world, uintptr(unsafe.Pointer(&request)))
		if err != nil {
			return err
		}
		p.requests, p.flights = append(p.requests, request), append(p.flights, f)
	}
	return nil
}

// parts is the number of MPI messages that n > 0 bytes take.
func parts(n int) int { return (n + maxPart - 1) / maxPart }
