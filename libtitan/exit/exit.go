// Package exit maps errors to the exit codes that every tool shares. An error carries its
// kind by a method ExitCode; [Kind.Errorf] makes such errors and [Code] reads them.
package exit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// Kind is why a tool ended, and its exit code.
type Kind int

// The exit codes of cli.md.
const (
	OK          Kind = 0
	Bug         Kind = 1   // a bug, or unknown
	Usage       Kind = 2   // the command line is off
	Input       Kind = 3   // a manifest, checkpoint, data file or schedule is bad
	No          Kind = 4   // the answer is no: no plan, a difference, a non-finite loss
	Lost        Kind = 5   // a device, a peer or I/O was lost
	Interrupted Kind = 130 // SIGINT
)

type kinded struct {
	kind Kind
	err  error
}

func (e *kinded) Error() string { return e.err.Error() }
func (e *kinded) Unwrap() error { return e.err }
func (e *kinded) ExitCode() int { return int(e.kind) }

// Errorf is fmt.Errorf for an error of kind k.
func (k Kind) Errorf(format string, args ...any) error {
	return &kinded{k, fmt.Errorf(format, args...)}
}

// Wrap gives err the kind k; nil stays nil.
func (k Kind) Wrap(err error) error {
	if err == nil {
		return nil
	}
	return &kinded{k, err}
}

// Code is the exit code of err: the outermost ExitCode in its chain, else 130 for a cancelled
// context, 5 for a full disk or failed I/O, 3 for a path that is missing, no path or may not be opened, else 1.
func Code(err error) int {
	var coder interface{ ExitCode() int }
	switch {
	case err == nil:
		return int(OK)
	case errors.As(err, &coder):
		return coder.ExitCode()
	case errors.Is(err, context.Canceled):
		return int(Interrupted)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EFBIG), errors.Is(err, syscall.EIO), errors.Is(err, syscall.EPIPE):
		return int(Lost)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.ELOOP):
		return int(Input)
	}
	return int(Bug)
}

// told is an error that another rank of the job reports.
type told struct{ error }

func (t told) Unwrap() error { return t.error }

// Told marks err as one that another rank of the job has, and reports.
func Told(err error) error { return told{err} }

// IsTold reports whether another rank of the job reports err.
func IsTold(err error) bool {
	var t told
	return errors.As(err, &t)
}
