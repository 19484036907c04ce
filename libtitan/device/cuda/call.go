package cuda

import (
	"fmt"
	"unsafe"

	"github.com/ebitengine/purego"
)

// call calls a C function whose arguments are integers and pointers. Pointers are passed as uintptr(ref(p)).
//
//go:uintptrescapes
func call(fn uintptr, args ...uintptr) int32 {
	r, _, _ := purego.SyscallN(fn, args...)
	return int32(r)
}

// ref shortens uintptr(unsafe.Pointer(p)) in argument lists. The conversion must be written there, never in a function:
// only then does go:uintptrescapes keep the object in place and alive during the call.
type ref = unsafe.Pointer

// at turns an address outside the Go heap into a pointer.
func at[T any](addr uintptr) *T { return *(**T)(ref(&addr)) }

// text copies a C string of at most 1 MiB.
func text(addr uintptr) string {
	if addr == 0 {
		return ""
	}
	p := at[[1 << 20]byte](addr)
	n := 0
	for n < len(p) && p[n] != 0 {
		n++
	}
	return string(p[:n])
}

// cstring is s with its NUL.
func cstring(s string) *byte { return &append([]byte(s), 0)[0] }

// Error is a call that one of NVIDIA's libraries refused.
type Error struct {
	Call string // with what it was asked for
	Name string // of the status, as the library has it
	Code int32
}

func (e *Error) Error() string { return fmt.Sprintf("cuda: %s: %s (%d)", e.Call, e.Name, e.Code) }

// ExitCode is 5: the device was lost, or had no room.
func (e *Error) ExitCode() int { return 5 }
