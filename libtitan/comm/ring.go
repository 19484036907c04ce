package comm

import (
	"log/slog"
	"sync"
)

// ringSize is how many calls a rank remembers.
const ringSize = 32

// entry is a call that a rank made.
type entry struct {
	op, what string
	place    string // "no. 17 in dp_shard [2 3]", "from rank 2"
	bytes    int
	state    string
}

// ring is the last calls of a rank, for the log when the job is lost.
type ring struct {
	mu      sync.Mutex
	entries [ringSize]*entry
	next    int
	dumped  bool
}

func (r *ring) add(e *entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries[r.next%ringSize] = e
	r.next++
}

func (r *ring) set(e *entry, state string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.state = state
}

// dump logs the calls, the oldest first, the first time that it is called.
func (r *ring) dump(log *slog.Logger, rank int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dumped {
		return
	}
	r.dumped = true
	for i := max(0, r.next-ringSize); i < r.next; i++ {
		e := r.entries[i%ringSize]
		log.Debug("last calls", "rank", rank, "call", i+1, "op", e.op, "what", e.what, "place", e.place, "bytes", e.bytes, "state", e.state)
	}
}
