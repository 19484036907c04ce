package cuda

import (
	"fmt"
	"unsafe"
)

// Ptr is an address in the device's memory. It may be moved by adding bytes.
type Ptr uintptr

// Alloc takes bytes of the device's memory, aligned to 256. What is in it is undefined.
func (d *Device) Alloc(bytes int) (Ptr, error) {
	if bytes == 0 {
		return 0, nil
	}
	var p uintptr
	err := d.drv.check(fmt.Sprintf("cuMemAlloc of %d MiB", bytes>>20), call(d.drv.cuMemAlloc, uintptr(ref(&p)), uintptr(bytes)))
	return Ptr(p), err
}

// Free gives memory back that Alloc took. The device waits for what runs first.
func (d *Device) Free(p Ptr) error {
	if p == 0 {
		return nil
	}
	return d.drv.check("cuMemFree", call(d.drv.cuMemFree, uintptr(p)))
}

// MemInfo is how much of the device's memory is free, and all of it, in bytes.
func (d *Device) MemInfo() (free, total int, err error) {
	var f, t uint64
	err = d.drv.check("cuMemGetInfo", call(d.drv.cuMemGetInfo, uintptr(ref(&f)), uintptr(ref(&t))))
	return int(f), int(t), err
}

// Upload copies src to the device and returns when it is there.
func (d *Device) Upload(dst Ptr, src []byte) error {
	if len(src) == 0 {
		return nil
	}
	if err := d.drv.check("cuMemcpyHtoD", call(d.drv.cuMemcpyHtoD, uintptr(dst), uintptr(ref(&src[0])), uintptr(len(src)))); err != nil {
		return err
	}
	// From memory that is not pinned the call returns when src was read, and our streams do not wait for the default one.
	const defaultStream = 0
	return d.drv.check("cuStreamSynchronize", call(d.drv.cuStreamSynchronize, defaultStream))
}

// Download copies from the device into dst and returns when it is there. Streams are not waited for.
func (d *Device) Download(dst []byte, src Ptr) error {
	if len(dst) == 0 {
		return nil
	}
	return d.drv.check("cuMemcpyDtoH", call(d.drv.cuMemcpyDtoH, uintptr(ref(&dst[0])), uintptr(src), uintptr(len(dst))))
}

// Host is memory of the host that the device reaches by itself, outside Go's heap: asynchronous copies want it, and so
// does what C reads after a call.
type Host struct {
	dev   *Device
	ptr   unsafe.Pointer
	size  int
	owner bool // it was taken here
}

// AllocHost takes bytes of pinned memory.
func (d *Device) AllocHost(bytes int) (*Host, error) {
	h := &Host{dev: d, size: bytes, owner: true}
	if bytes == 0 {
		return h, nil
	}
	return h, d.drv.check(fmt.Sprintf("cuMemHostAlloc of %d MiB", bytes>>20), call(d.drv.cuMemHostAlloc, uintptr(ref(&h.ptr)), uintptr(bytes), 0))
}

// Pin pins memory outside Go's heap that somebody else owns. Where its pages are there already, the driver, for which
// all other calls wait meanwhile, need not make them.
func (d *Device) Pin(mem []byte) (*Host, error) {
	h := &Host{dev: d, ptr: unsafe.Pointer(unsafe.SliceData(mem)), size: len(mem)}
	err := d.drv.check(fmt.Sprintf("cuMemHostRegister of %d MiB", len(mem)>>20), call(d.drv.cuMemHostRegister, uintptr(h.ptr), uintptr(len(mem)), 0))
	if err != nil {
		return nil, err
	}
	return h, nil
}

// Bytes is the memory; it is gone after Free.
func (h *Host) Bytes() []byte { return unsafe.Slice((*byte)(h.ptr), h.size) }

// Free gives the memory back, or ends its being pinned.
func (h *Host) Free() error {
	switch {
	case h.ptr == nil:
		return nil
	case !h.owner:
		return h.dev.drv.check("cuMemHostUnregister", call(h.dev.drv.cuMemHostUnregister, uintptr(h.ptr)))
	}
	return h.dev.drv.check("cuMemFreeHost", call(h.dev.drv.cuMemFreeHost, uintptr(h.ptr)))
}

// addr is the address of byte offset.
func (h *Host) addr(offset int) uintptr { return uintptr(unsafe.Add(h.ptr, offset)) }

// HostOf views pinned memory as elements of T, from byte offset on.
func HostOf[T any](h *Host, offset, n int) []T {
	return unsafe.Slice((*T)(unsafe.Add(h.ptr, offset)), n)
}
