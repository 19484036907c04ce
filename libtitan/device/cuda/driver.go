package cuda

import "strings"

// driver holds the functions of libcuda.
type driver struct {
	cuInit, cuGetErrorName, cuDriverGetVersion                            uintptr
	cuDeviceGet, cuDeviceGetCount, cuDeviceGetName, cuDeviceGetAttribute  uintptr
	cuDeviceGetPCIBusId                                                   uintptr
	cuDeviceTotalMem, cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRelease uintptr
	cuCtxSetCurrent, cuCtxGetStreamPriorityRange                          uintptr
	cuMemAlloc, cuMemFree, cuMemGetInfo, cuMemHostAlloc, cuMemFreeHost    uintptr
	cuMemHostRegister, cuMemHostUnregister                                uintptr
	cuMemcpyHtoD, cuMemcpyDtoH, cuMemcpyHtoDAsync, cuMemcpyDtoHAsync      uintptr
	cuMemcpyDtoDAsync, cuMemcpy2DAsync, cuMemsetD8Async, cuMemsetD32Async uintptr
	cuStreamCreateWithPriority, cuStreamSynchronize, cuStreamDestroy      uintptr
	cuStreamWaitEvent, cuStreamBeginCapture, cuStreamEndCapture           uintptr
	cuEventCreate, cuEventRecord, cuEventSynchronize, cuEventQuery        uintptr
	cuEventElapsedTime, cuEventDestroy, cuEventRecordWithFlags            uintptr
	cuModuleLoadData, cuModuleGetFunction, cuFuncSetAttribute             uintptr
	cuLaunchKernel, cuGraphGetNodes, cuGraphInstantiate, cuGraphDestroy   uintptr
	cuGraphLaunch, cuGraphExecDestroy                                     uintptr
}

// names are the exported ones: those with a version at the end are the current form of a call.
func (d *driver) names() map[string]*uintptr {
	return map[string]*uintptr{
		"cuInit": &d.cuInit, "cuGetErrorName": &d.cuGetErrorName, "cuDriverGetVersion": &d.cuDriverGetVersion,
		"cuDeviceGet": &d.cuDeviceGet, "cuDeviceGetCount": &d.cuDeviceGetCount, "cuDeviceGetName": &d.cuDeviceGetName,
		"cuDeviceGetAttribute": &d.cuDeviceGetAttribute, "cuDeviceGetPCIBusId": &d.cuDeviceGetPCIBusId, "cuDeviceTotalMem_v2": &d.cuDeviceTotalMem,
		"cuDevicePrimaryCtxRetain": &d.cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRelease_v2": &d.cuDevicePrimaryCtxRelease,
		"cuCtxSetCurrent": &d.cuCtxSetCurrent, "cuCtxGetStreamPriorityRange": &d.cuCtxGetStreamPriorityRange,
		"cuMemAlloc_v2": &d.cuMemAlloc, "cuMemFree_v2": &d.cuMemFree, "cuMemGetInfo_v2": &d.cuMemGetInfo,
		"cuMemHostAlloc": &d.cuMemHostAlloc, "cuMemFreeHost": &d.cuMemFreeHost,
		"cuMemHostRegister_v2": &d.cuMemHostRegister, "cuMemHostUnregister": &d.cuMemHostUnregister,
		"cuMemcpyHtoD_v2": &d.cuMemcpyHtoD, "cuMemcpyDtoH_v2": &d.cuMemcpyDtoH,
		"cuMemcpyHtoDAsync_v2": &d.cuMemcpyHtoDAsync, "cuMemcpyDtoHAsync_v2": &d.cuMemcpyDtoHAsync,
		"cuMemcpyDtoDAsync_v2": &d.cuMemcpyDtoDAsync, "cuMemcpy2DAsync_v2": &d.cuMemcpy2DAsync,
		"cuMemsetD8Async": &d.cuMemsetD8Async, "cuMemsetD32Async": &d.cuMemsetD32Async,
		"cuStreamCreateWithPriority": &d.cuStreamCreateWithPriority, "cuStreamSynchronize": &d.cuStreamSynchronize,
		"cuStreamDestroy_v2": &d.cuStreamDestroy, "cuStreamWaitEvent": &d.cuStreamWaitEvent,
		"cuStreamBeginCapture_v2": &d.cuStreamBeginCapture, "cuStreamEndCapture": &d.cuStreamEndCapture,
		"cuEventCreate": &d.cuEventCreate, "cuEventRecord": &d.cuEventRecord, "cuEventRecordWithFlags": &d.cuEventRecordWithFlags, "cuEventSynchronize": &d.cuEventSynchronize,
		"cuEventQuery": &d.cuEventQuery, "cuEventElapsedTime": &d.cuEventElapsedTime, "cuEventDestroy_v2": &d.cuEventDestroy,
		"cuModuleLoadData": &d.cuModuleLoadData, "cuModuleGetFunction": &d.cuModuleGetFunction, "cuFuncSetAttribute": &d.cuFuncSetAttribute,
		"cuLaunchKernel": &d.cuLaunchKernel, "cuGraphGetNodes": &d.cuGraphGetNodes,
		"cuGraphInstantiateWithFlags": &d.cuGraphInstantiate, "cuGraphDestroy": &d.cuGraphDestroy,
		"cuGraphLaunch": &d.cuGraphLaunch, "cuGraphExecDestroy": &d.cuGraphExecDestroy,
	}
}

// check turns a status into an error that names the call.
func (d *driver) check(what string, rc int32) error {
	if rc == 0 {
		return nil
	}
	name := "unknown status"
	var s uintptr
	if call(d.cuGetErrorName, uintptr(rc), uintptr(ref(&s))) == 0 {
		name = strings.TrimPrefix(text(s), "CUDA_ERROR_")
	}
	return &Error{what, name, rc}
}
