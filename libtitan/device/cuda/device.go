// Package cuda runs kernels on NVIDIA's GPUs. The driver, NVRTC, cuBLASLt and cuDNN are found at run time, without
// cgo, so a binary built on any machine runs on one with a GPU; [Open] says which library is missing and where it
// looked. A [Device] has memory and streams. An [Engine] binds kernels, products and attention to memory on one of its
// streams, once: what it gives is a [Work], to be done again and again.
//
// A context belongs to OS threads: whoever uses a device does so between [Device.Enter] and the function it returns.
package cuda

import (
	"fmt"
	"runtime"
	"strings"

	"titan/libtitan/exit"
)

// Device is one GPU and its primary context.
type Device struct {
	Name         string
	Major, Minor int // of its compute capability
	SMs          int // streaming multiprocessors
	TotalBytes   int // of its memory
	Driver       int // version of the driver's API, 1000·major + 10·minor
	drv          *driver
	find         finder
	id           int32
	ctx          uintptr
}

// Count is the number of GPUs that this process sees.
func Count() (int, error) {
	drv, err := openDriver(systemFinder())
	if err != nil {
		return 0, err
	}
	var n int32
	err = drv.check("cuDeviceGetCount", call(drv.cuDeviceGetCount, uintptr(ref(&n))))
	return int(n), err
}

func openDriver(f finder) (*driver, error) {
	drv := &driver{}
	if err := f.bind(driverLib, drv.names()); err != nil {
		return nil, err
	}
	return drv, drv.check("cuInit", call(drv.cuInit, 0))
}

// Open takes GPU index of those that this process sees.
func Open(index int) (*Device, error) {
	f := systemFinder()
	drv, err := openDriver(f)
	if err != nil {
		return nil, err
	}
	d := &Device{drv: drv, find: f}
	if rc := call(drv.cuDeviceGet, uintptr(ref(&d.id)), uintptr(index)); rc != 0 {
		var n int32
		call(drv.cuDeviceGetCount, uintptr(ref(&n)))
		return nil, exit.Lost.Errorf("cuda: no GPU %d: this process sees %d", index, n)
	}
	if err := d.describe(); err != nil {
		return nil, err
	}
	return d, drv.check("cuDevicePrimaryCtxRetain", call(drv.cuDevicePrimaryCtxRetain, uintptr(ref(&d.ctx)), uintptr(d.id)))
}

// Numbers of CUdevice_attribute.
const (
	attrSMs   = 16
	attrMajor = 75
	attrMinor = 76
)

func (d *Device) describe() error {
	var sms, major, minor, version int32
	var total uint64
	name := make([]byte, 256)
	for _, q := range []struct {
		what string
		rc   int32
	}{
		{"cuDeviceGetName", call(d.drv.cuDeviceGetName, uintptr(ref(&name[0])), uintptr(len(name)), uintptr(d.id))},
		{"cuDeviceTotalMem", call(d.drv.cuDeviceTotalMem, uintptr(ref(&total)), uintptr(d.id))},
		{"cuDeviceGetAttribute", call(d.drv.cuDeviceGetAttribute, uintptr(ref(&sms)), attrSMs, uintptr(d.id))},
		{"cuDeviceGetAttribute", call(d.drv.cuDeviceGetAttribute, uintptr(ref(&major)), attrMajor, uintptr(d.id))},
		{"cuDeviceGetAttribute", call(d.drv.cuDeviceGetAttribute, uintptr(ref(&minor)), attrMinor, uintptr(d.id))},
		{"cuDriverGetVersion", call(d.drv.cuDriverGetVersion, uintptr(ref(&version)))},
	} {
		if err := d.drv.check(q.what, q.rc); err != nil {
			return err
		}
	}
	d.Name, _, _ = strings.Cut(string(name), "\x00")
	d.SMs, d.Major, d.Minor, d.TotalBytes, d.Driver = int(sms), int(major), int(minor), int(total), int(version)
	return nil
}

// BusID is the device's place on the PCI bus, by which other libraries know it too.
func (d *Device) BusID() (string, error) {
	id := make([]byte, 32)
	err := d.drv.check("cuDeviceGetPCIBusId", call(d.drv.cuDeviceGetPCIBusId, uintptr(ref(&id[0])), uintptr(len(id)), uintptr(d.id)))
	name, _, _ := strings.Cut(string(id), "\x00")
	return name, err
}

// Enter ties the goroutine to its OS thread and makes the device current there, until leave is called.
func (d *Device) Enter() (leave func(), err error) {
	runtime.LockOSThread()
	if err := d.drv.check("cuCtxSetCurrent", call(d.drv.cuCtxSetCurrent, d.ctx)); err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	return runtime.UnlockOSThread, nil
}

// Close gives the context back; memory, streams and engines of the device are gone with it.
func (d *Device) Close() error {
	return d.drv.check("cuDevicePrimaryCtxRelease", call(d.drv.cuDevicePrimaryCtxRelease, uintptr(d.id)))
}

func (d *Device) String() string {
	return fmt.Sprintf("%s (sm_%d%d, %d multiprocessors)", d.Name, d.Major, d.Minor, d.SMs)
}
