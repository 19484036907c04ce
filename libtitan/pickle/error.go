package pickle

import "fmt"

// Error says why a pickle was refused, and where.
type Error struct {
	Offset int    // of the opcode, in bytes from the start
	Op     string // the opcode's name, or "" at the end of the input
	Err    error
}

func (e *Error) Error() string {
	if e.Op == "" {
		return fmt.Sprintf("pickle: offset %d: %v", e.Offset, e.Err)
	}
	return fmt.Sprintf("pickle: offset %d: %s: %v", e.Offset, e.Op, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// ExitCode marks the error as bad input.
func (e *Error) ExitCode() int { return 3 }
