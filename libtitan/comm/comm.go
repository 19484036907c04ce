// Package comm says what a communication engine does for the ranks of a job; its subfolders are engines.
package comm

import "context"

// Comm is one rank's end of an engine. A call blocks until it is done or ctx ends; when a rank fails, the
// calls of all others fail.
type Comm interface {
	Rank() int
	Size() int
	// Send hands data to rank to under tag; data may be reused when it returns.
	Send(ctx context.Context, to int, tag string, data []byte) error
	// Recv fills data with what rank from sends under tag; the lengths must agree.
	Recv(ctx context.Context, from int, tag string, data []byte) error
	// Sum replaces data, on every rank, by its sum over the ranks, added in rank order.
	Sum(ctx context.Context, data []float64) error
	// Barrier returns when all ranks have called it.
	Barrier(ctx context.Context) error
}
