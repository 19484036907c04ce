package alloc

import "slices"

// Action is what happened.
type Action uint8

// The actions of PyTorch's traces; Use and Wait are ours.
const (
	Alloc         Action = iota // a block was handed out
	FreeRequested               // its owner let go
	FreeCompleted               // it became reusable
	SegmentAlloc                // memory was taken from the device
	SegmentFree                 // and given back
	SegmentMap                  // pages of an expandable segment were mapped
	SegmentUnmap                // and unmapped
	OOM                         // a request failed
	Use                         // a block is used by work on stream Other
	Wait                        // Stream waits for what is queued on stream Other
	Ignored                     // any other that a snapshot may hold
)

var actions = []string{"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom", "use", "wait"}

func (a Action) String() string {
	if int(a) < len(actions) {
		return actions[a]
	}
	return "ignored"
}

// ParseAction is the action of a name, Ignored if it is none of ours.
func ParseAction(name string) Action {
	if i := slices.Index(actions, name); i >= 0 {
		return Action(i)
	}
	return Ignored
}

// Event is one thing that the allocator did.
type Event struct {
	Action Action
	Addr   uint64
	Size   int64  // bytes: requested, of a block's events; of the range, of a segment's; rounded, of OOM. Uses, of Wait: the later ones
	Stream Stream // whose pool it is
	Other  Stream // of Use and Wait
	Time   int64  // microseconds of Unix time
	Owner  string // of a block: who asked for it, an FQN or a call stack
}
