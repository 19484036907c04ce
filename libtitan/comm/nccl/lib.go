package nccl

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/ebitengine/purego"

	"titan/libtitan/comm"
	"titan/libtitan/device/cuda"
	"titan/libtitan/dtype"
	"titan/libtitan/exit"
)

// oldest is the first release whose communicators are made from an id in memory (ncclCommInitRankScalable).
const oldest = 22304

// firstZeroCTA is the first release whose gathers in windows go by copy engines, where a communicator asks for that.
const firstZeroCTA = 22800

const fix = "pip install nvidia-nccl-cu13, or install libnccl2"

// lib holds the functions of libnccl, and one of the driver's.
type lib struct {
	version                                     int
	getVersion, getErrorString, getLastError    uintptr
	getUniqueID, initRank, split, abort         uintptr
	asyncError, groupStart, groupEnd            uintptr
	allGather, reduceScatter, allReduce, reduce uintptr
	send, recv                                  uintptr
	memAlloc, memFree, register, deregister     uintptr // 0: the library is too old for windows
	writeValue                                  uintptr // cuStreamWriteValue32
}

// open loads the library.
func open() (*lib, error) {
	l := &lib{}
	err := cuda.Bind("NCCL", []string{"libnccl.so.2"}, fix, map[string]*uintptr{
		"ncclGetVersion": &l.getVersion, "ncclGetErrorString": &l.getErrorString, "ncclGetUniqueId": &l.getUniqueID,
		"ncclCommSplit": &l.split, "ncclCommAbort": &l.abort,
		"ncclCommGetAsyncError": &l.asyncError, "ncclGroupStart": &l.groupStart, "ncclGroupEnd": &l.groupEnd,
		"ncclAllGather": &l.allGather, "ncclReduceScatter": &l.reduceScatter, "ncclAllReduce": &l.allReduce,
		"ncclReduce": &l.reduce, "ncclSend": &l.send, "ncclRecv": &l.recv,
		"ncclGetLastError":         &l.getLastError,
		"ncclCommInitRankScalable": &l.initRank,
	})
	if err != nil {
		return nil, err
	}
	var version int32
	if err := l.check("ncclGetVersion", call(l.getVersion, uintptr(ref(&version)))); err != nil {
		return nil, err
	}
	if l.version = int(version); l.version < oldest {
		return nil, exit.Lost.Errorf("nccl: version %d was found, 2.23.4 or later is needed: %s", version, fix)
	}
	if l.version >= firstZeroCTA {
		err = cuda.Bind("NCCL", []string{"libnccl.so.2"}, fix, map[string]*uintptr{
			"ncclMemAlloc": &l.memAlloc, "ncclMemFree": &l.memFree,
			"ncclCommWindowRegister": &l.register, "ncclCommWindowDeregister": &l.deregister,
		})
		if err != nil {
			return nil, err
		}
	}
	return l, cuda.Bind("NVIDIA driver", []string{"libcuda.so.1"}, "install NVIDIA's driver", map[string]*uintptr{"cuStreamWriteValue32_v2": &l.writeValue})
}

// call calls a C function whose arguments are integers and pointers. Pointers are passed as uintptr(ref(p)).
//
//go:uintptrescapes
func call(fn uintptr, args ...uintptr) int32 {
	r, _, _ := purego.SyscallN(fn, args...)
	return int32(r)
}

// ref shortens uintptr(unsafe.Pointer(p)) in argument lists.
type ref = unsafe.Pointer

// text copies the C string that fn returns, of at most 1 KiB.
//
//go:uintptrescapes
func text(fn uintptr, args ...uintptr) string {
	addr, _, _ := purego.SyscallN(fn, args...)
	if addr == 0 {
		return ""
	}
	p := *(**[1 << 10]byte)(ref(&addr))
	n := 0
	for n < len(p) && p[n] != 0 {
		n++
	}
	return string(p[:n])
}

// check turns a ncclResult_t into an error that names the call.
func (l *lib) check(what string, rc int32) error {
	const inProgress = 7
	if rc == 0 || rc == inProgress {
		return nil
	}
	why := text(l.getErrorString, uintptr(rc))
	if last := text(l.getLastError, 0); last != "" {
		why += ": " + last
	}
	return exit.Lost.Errorf("nccl: %s: %s", what, why)
}

// config is ncclConfig_t of NCCL 2.28. An older library reads the front of it that it knows, a newer one takes what it
// adds as unset.
type config struct {
	size                                                       uint64
	magic, version                                             uint32
	blocking, cgaClusterSize, minCTAs, maxCTAs                 int32
	netName                                                    uintptr
	splitShare, trafficClass                                   int32
	commName                                                   uintptr
	collnet, policy, shrinkShare, nvlsCTAs, channels, nvlSched int32
}

// zeroCTA is NCCL_CTA_POLICY_ZERO: no multiprocessor is taken where copy engines can move what is asked for.
const zeroCTA = 2

func newConfig() *config {
	const unset = math.MinInt32
	return &config{size: uint64(unsafe.Sizeof(config{})), magic: 0xcafebeef, version: 22800, blocking: 1, cgaClusterSize: unset, minCTAs: unset, maxCTAs: unset,
		splitShare: unset, trafficClass: unset, collnet: unset, policy: unset, shrinkShare: unset, nvlsCTAs: unset, channels: unset, nvlSched: unset}
}

// dataTypes are the numbers of ncclDataType_t, for what can be reduced.
var dataTypes = map[dtype.DType]uintptr{dtype.Int64: 4, dtype.Float32: 7, dtype.Float64: 8, dtype.BFloat16: 9}

// bytesType is ncclInt8, for what is only moved.
const bytesType = 0

// reductions are the numbers of ncclRedOp_t. ncclMax may drop a NaN.
var reductions = map[comm.Op]uintptr{comm.Sum: 0, comm.Max: 2}

func reduction(dt dtype.DType, op comm.Op) (dataType, redOp uintptr, err error) {
	dataType, known := dataTypes[dt]
	redOp, ok := reductions[op]
	if !known || !ok {
		return 0, 0, fmt.Errorf("nccl: no reduction %v of %v", op, dt)
	}
	return dataType, redOp, nil
}
