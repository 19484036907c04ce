package cuda

import (
	"fmt"
	"strings"

	"titan/libtitan/exit"
)

// nvrtc holds the functions of NVIDIA's compiler library. Since 12.9 it keeps what it compiled on disk, so that the
// same source takes 20 ms in the next process.
type nvrtc struct {
	create, destroy, addName, compile, loweredName uintptr
	logSize, log, cubinSize, cubin                 uintptr
}

func openNVRTC(f finder) (*nvrtc, error) {
	r := &nvrtc{}
	return r, f.bind(nvrtcLib, map[string]*uintptr{
		"nvrtcCreateProgram": &r.create, "nvrtcDestroyProgram": &r.destroy, "nvrtcAddNameExpression": &r.addName,
		"nvrtcCompileProgram": &r.compile, "nvrtcGetLoweredName": &r.loweredName,
		"nvrtcGetProgramLogSize": &r.logSize, "nvrtcGetProgramLog": &r.log,
		"nvrtcGetCUBINSize": &r.cubinSize, "nvrtcGetCUBIN": &r.cubin,
	})
}

// source is a .cu file and the kernels that are wanted of it, as C++ name expressions: "rope<float, 4>".
type source struct {
	file    string
	text    string
	kernels []string
}

// object is a compiled source. lowered gives the name in it of each kernel.
type object struct {
	cubin   []byte
	lowered map[string]string
}

// compileFor makes machine code of the architecture arch ("sm_90"). Many goroutines may compile at once.
func (r *nvrtc) compileFor(arch string, src source) (*object, error) {
	var prog uintptr
	header, name := cstring(commonHeader), cstring("common.cuh")
	if rc := call(r.create, uintptr(ref(&prog)), uintptr(ref(cstring(src.text))), uintptr(ref(cstring(src.file))), 1, uintptr(ref(&header)), uintptr(ref(&name))); rc != 0 {
		return nil, r.failed("nvrtcCreateProgram", rc)
	}
	defer call(r.destroy, uintptr(ref(&prog)))
	for _, k := range src.kernels {
		if rc := call(r.addName, prog, uintptr(ref(cstring(k)))); rc != 0 {
			return nil, r.failed("nvrtcAddNameExpression "+k, rc)
		}
	}
	options := []*byte{cstring("--gpu-architecture=" + arch), cstring("--std=c++17")}
	if rc := call(r.compile, prog, uintptr(len(options)), uintptr(ref(&options[0]))); rc != 0 {
		return nil, exit.Bug.Errorf("cuda: compile %s for %s: %s", src.file, arch, r.firstError(prog))
	}
	o := &object{lowered: map[string]string{}}
	for _, k := range src.kernels {
		var s uintptr
		if rc := call(r.loweredName, prog, uintptr(ref(cstring(k))), uintptr(ref(&s))); rc != 0 {
			return nil, r.failed("nvrtcGetLoweredName "+k, rc)
		}
		o.lowered[k] = text(s)
	}
	var n uint64
	if rc := call(r.cubinSize, prog, uintptr(ref(&n))); rc != 0 {
		return nil, r.failed("nvrtcGetCUBINSize", rc)
	}
	o.cubin = make([]byte, n)
	if rc := call(r.cubin, prog, uintptr(ref(&o.cubin[0]))); rc != 0 {
		return nil, r.failed("nvrtcGetCUBIN", rc)
	}
	return o, nil
}

// firstError is the line of the compiler's log that says what is wrong.
func (r *nvrtc) firstError(prog uintptr) string {
	var n uint64
	call(r.logSize, prog, uintptr(ref(&n)))
	log := make([]byte, n+1)
	call(r.log, prog, uintptr(ref(&log[0])))
	first := ""
	for line := range strings.Lines(strings.TrimRight(string(log), "\x00")) {
		if line = strings.TrimSpace(line); line != "" && (first == "" || strings.Contains(line, "error")) {
			first = line
			if strings.Contains(line, "error") {
				break
			}
		}
	}
	return first
}

func (r *nvrtc) failed(what string, rc int32) error {
	return &Error{what, fmt.Sprintf("NVRTC status %d", rc), rc}
}
