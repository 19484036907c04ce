package cuda

import (
	"errors"
	"fmt"
)

// Stream is a queue of work on a device.
type Stream struct {
	dev       *Device
	handle    uintptr
	recording bool // what is put on it becomes a graph
}

// NewStream makes a stream that does not wait for the default one. Urgent ones are served first.
func (d *Device) NewStream(urgent bool) (*Stream, error) {
	var low, high int32
	if err := d.drv.check("cuCtxGetStreamPriorityRange", call(d.drv.cuCtxGetStreamPriorityRange, uintptr(ref(&low)), uintptr(ref(&high)))); err != nil {
		return nil, err
	}
	if urgent {
		low = high
	}
	const nonBlocking = 1
	s := &Stream{dev: d}
	return s, d.drv.check("cuStreamCreate", call(d.drv.cuStreamCreateWithPriority, uintptr(ref(&s.handle)), nonBlocking, uintptr(low)))
}

// Handle is the CUstream, for libraries that are given one.
func (s *Stream) Handle() uintptr { return s.handle }

// Sync waits until all that was put on the stream is done, and tells if any of it failed.
func (s *Stream) Sync() error {
	return s.dev.drv.check("cuStreamSynchronize", call(s.dev.drv.cuStreamSynchronize, s.handle))
}

// Close waits for nothing: what is on the stream is done all the same.
func (s *Stream) Close() error {
	return s.dev.drv.check("cuStreamDestroy", call(s.dev.drv.cuStreamDestroy, s.handle))
}

// Zero clears bytes.
func (s *Stream) Zero(p Ptr, bytes int) error { return s.Set(p, 0, bytes) }

// Set sets every one of bytes to value.
func (s *Stream) Set(p Ptr, value byte, bytes int) error {
	if bytes == 0 {
		return nil
	}
	return s.dev.drv.check("cuMemsetD8Async", call(s.dev.drv.cuMemsetD8Async, uintptr(p), uintptr(value), uintptr(bytes), s.handle))
}

// Copy copies bytes within the device.
func (s *Stream) Copy(dst, src Ptr, bytes int) error {
	if bytes == 0 || dst == src {
		return nil
	}
	return s.dev.drv.check("cuMemcpyDtoDAsync", call(s.dev.drv.cuMemcpyDtoDAsync, uintptr(dst), uintptr(src), uintptr(bytes), s.handle))
}

// copy2D is CUDA_MEMCPY2D.
type copy2D struct {
	srcX, srcY    uint64
	srcType, _    uint32
	srcHost       uintptr
	srcDevice     uintptr
	srcArray      uintptr
	srcPitch      uint64
	dstX, dstY    uint64
	dstType, _    uint32
	dstHost       uintptr
	dstDevice     uintptr
	dstArray      uintptr
	dstPitch      uint64
	width, height uint64
}

// CopyRows copies rows of width bytes within the device; they start dstPitch and srcPitch bytes apart.
func (s *Stream) CopyRows(dst Ptr, dstPitch int, src Ptr, srcPitch, width, rows int) error {
	if width == 0 || rows == 0 {
		return nil
	}
	const onDevice = 2
	c := &copy2D{srcType: onDevice, srcDevice: uintptr(src), srcPitch: uint64(srcPitch),
		dstType: onDevice, dstDevice: uintptr(dst), dstPitch: uint64(dstPitch), width: uint64(width), height: uint64(rows)}
	return s.dev.drv.check("cuMemcpy2DAsync", call(s.dev.drv.cuMemcpy2DAsync, uintptr(ref(c)), s.handle))
}

// Upload puts a copy of bytes of pinned memory, from offset on, on the stream.
func (s *Stream) Upload(dst Ptr, src *Host, offset, bytes int) error {
	if bytes == 0 {
		return nil
	}
	return s.dev.drv.check("cuMemcpyHtoDAsync", call(s.dev.drv.cuMemcpyHtoDAsync, uintptr(dst), src.addr(offset), uintptr(bytes), s.handle))
}

// Download puts a copy into pinned memory on the stream.
func (s *Stream) Download(dst *Host, offset int, src Ptr, bytes int) error {
	if bytes == 0 {
		return nil
	}
	return s.dev.drv.check("cuMemcpyDtoHAsync", call(s.dev.drv.cuMemcpyDtoHAsync, dst.addr(offset), uintptr(src), uintptr(bytes), s.handle))
}

// WaitOutside is Wait for an event that is never set by what is recorded: each time, a graph waits for what it was set to before
// the graph was launched. One that was never set has come.
func (s *Stream) WaitOutside(e *Event) error {
	if !s.recording {
		return s.Wait(e)
	}
	const external = 1
	return s.dev.drv.check("cuStreamWaitEvent", call(s.dev.drv.cuStreamWaitEvent, s.handle, e.handle, external))
}

// Event is a point in a stream.
type Event struct {
	dev    *Device
	handle uintptr
}

// NewEvent makes an event. Those that are timed cost more.
func (d *Device) NewEvent(timed bool) (*Event, error) {
	flags := uintptr(2) // CU_EVENT_DISABLE_TIMING
	if timed {
		flags = 0
	}
	e := &Event{dev: d}
	return e, d.drv.check("cuEventCreate", call(d.drv.cuEventCreate, uintptr(ref(&e.handle)), flags))
}

// Record sets e to what has been put on s so far.
func (s *Stream) Record(e *Event) error {
	return s.dev.drv.check("cuEventRecord", call(s.dev.drv.cuEventRecord, e.handle, s.handle))
}

// Signal sets e to what has been put on s so far, for the host to wait for. Recorded, it does so each time the graph comes to
// it; other streams must not wait for e then.
func (s *Stream) Signal(e *Event) error {
	if !s.recording {
		return s.Record(e)
	}
	const external = 1
	return s.dev.drv.check("cuEventRecordWithFlags", call(s.dev.drv.cuEventRecordWithFlags, e.handle, s.handle, external))
}

// Wait makes what is put on s from now on wait for e.
func (s *Stream) Wait(e *Event) error {
	return s.dev.drv.check("cuStreamWaitEvent", call(s.dev.drv.cuStreamWaitEvent, s.handle, e.handle, 0))
}

// Sync waits for e.
func (e *Event) Sync() error {
	return e.dev.drv.check("cuEventSynchronize", call(e.dev.drv.cuEventSynchronize, e.handle))
}

// Done reports whether e has come, without waiting.
func (e *Event) Done() (bool, error) {
	const notReady = 600
	rc := call(e.dev.drv.cuEventQuery, e.handle)
	if rc == notReady {
		return false, nil
	}
	return rc == 0, e.dev.drv.check("cuEventQuery", rc)
}

// Since is the time from an earlier event to e in milliseconds; both have come, and are timed.
func (e *Event) Since(earlier *Event) (ms float32, err error) {
	err = e.dev.drv.check("cuEventElapsedTime", call(e.dev.drv.cuEventElapsedTime, uintptr(ref(&ms)), earlier.handle, e.handle))
	return ms, err
}

// Close gives the event back.
func (e *Event) Close() error {
	return e.dev.drv.check("cuEventDestroy", call(e.dev.drv.cuEventDestroy, e.handle))
}

// Graph is recorded work that one call puts on a stream.
type Graph struct {
	dev   *Device
	exec  uintptr
	Nodes int
}

// Capture records what f puts on s, and does not do it. f must neither wait nor take memory; memory taken by other
// threads meanwhile does no harm.
func (s *Stream) Capture(f func() error) (*Graph, error) {
	const threadLocal = 1
	drv := s.dev.drv
	if err := drv.check("cuStreamBeginCapture", call(drv.cuStreamBeginCapture, s.handle, threadLocal)); err != nil {
		return nil, err
	}
	s.recording = true
	failed := f()
	s.recording = false
	var graph uintptr
	err := drv.check("cuStreamEndCapture", call(drv.cuStreamEndCapture, s.handle, uintptr(ref(&graph))))
	if err := errors.Join(failed, err); err != nil {
		return nil, err
	}
	defer call(drv.cuGraphDestroy, graph)
	g := &Graph{dev: s.dev}
	var nodes uint64
	if err := drv.check("cuGraphGetNodes", call(drv.cuGraphGetNodes, graph, 0, uintptr(ref(&nodes)))); err != nil {
		return nil, err
	}
	g.Nodes = int(nodes)
	return g, drv.check(fmt.Sprintf("cuGraphInstantiate of %d nodes", nodes), call(drv.cuGraphInstantiate, uintptr(ref(&g.exec)), graph, 0))
}

// Launch puts g on s.
func (s *Stream) Launch(g *Graph) error {
	return s.dev.drv.check("cuGraphLaunch", call(s.dev.drv.cuGraphLaunch, g.exec, s.handle))
}

// Close gives the graph back.
func (g *Graph) Close() error {
	return g.dev.drv.check("cuGraphExecDestroy", call(g.dev.drv.cuGraphExecDestroy, g.exec))
}
