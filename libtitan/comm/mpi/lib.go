package mpi

import (
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"

	"titan/libtitan/exit"
)

// libNames is Open MPI's library: releases 4 and 5 share the soname. libmpi.so alone may be another MPI's.
var libNames = []string{"libmpi.so.40", "/usr/lib/x86_64-linux-gnu/openmpi/lib/libmpi.so.40", "/usr/lib64/openmpi/lib/libmpi.so.40"}

// lib is Open MPI's library. Its handles are the addresses of data symbols.
type lib struct {
	initThread, finalize, commRank, commSize, setErrhandler, errorString uintptr
	isend, irecv, recv, iprobe, getCount, testsome                       uintptr
	world, bytes, errorsReturn                                           uintptr
}

// open loads the library. Its plug-ins resolve symbols against it, so it must be RTLD_GLOBAL.
func open() (*lib, error) {
	var h uintptr
	var err error
	for _, name := range libNames {
		if h, err = purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_GLOBAL); err == nil {
			break
		}
	}
	if err != nil {
		return nil, exit.Lost.Errorf("no Open MPI: looked for %s in the loader's path: apt-get install openmpi-bin, or set LD_LIBRARY_PATH", strings.Join(libNames, ", "))
	}
	l := &lib{}
	for name, to := range map[string]*uintptr{
		"MPI_Init_thread": &l.initThread, "MPI_Finalize": &l.finalize, "MPI_Comm_rank": &l.commRank, "MPI_Comm_size": &l.commSize,
		"MPI_Comm_set_errhandler": &l.setErrhandler, "MPI_Error_string": &l.errorString,
		"MPI_Isend": &l.isend, "MPI_Irecv": &l.irecv, "MPI_Recv": &l.recv, "MPI_Iprobe": &l.iprobe,
		"MPI_Get_count": &l.getCount, "MPI_Testsome": &l.testsome,
		"ompi_mpi_comm_world": &l.world, "ompi_mpi_byte": &l.bytes, "ompi_mpi_errors_return": &l.errorsReturn,
	} {
		if *to, err = purego.Dlsym(h, name); err != nil {
			return nil, exit.Lost.Errorf("libmpi has no %s: it is not Open MPI 4 or later: apt-get install openmpi-bin", name)
		}
	}
	return l, nil
}

// call makes an MPI call; name is for its error.
//
//go:uintptrescapes
func (l *lib) call(name string, fn uintptr, args ...uintptr) error {
	rc, _, _ := purego.SyscallN(fn, args...)
	if int32(rc) == 0 {
		return nil
	}
	text, n := make([]byte, 256), int32(0) // MPI_MAX_ERROR_STRING
	purego.SyscallN(l.errorString, rc, uintptr(unsafe.Pointer(&text[0])), uintptr(unsafe.Pointer(&n)))
	return exit.Lost.Errorf("%s: %s", name, text[:n])
}
