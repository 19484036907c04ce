package snapshot

import (
	"encoding/binary"
	"fmt"
	"path"
	"strings"
)

// Owner is who asked for memory: a call stack, the innermost frame first. titan-run's owners are FQNs: one frame
// with a name alone.
type Owner struct {
	Frames []Frame
}

// Frame is a line of a call stack.
type Frame struct {
	Name string `json:"name"`
	File string `json:"filename,omitempty"`
	Line int    `json:"line,omitempty"`
}

func (f Frame) String() string {
	if f.File == "" {
		return f.Name
	}
	return fmt.Sprintf("%s (%s:%d)", f.Name, path.Base(f.File), f.Line)
}

// ofUser reports whether a frame is neither torch's nor C++'s.
func (f Frame) ofUser() bool {
	return f.File != "??" && !strings.Contains(f.File, "/torch/") && !strings.HasPrefix(f.File, "torch/")
}

// Lines are the frames to show, n at most: the user's innermost ones, or torch's where there are no others.
func (o *Owner) Lines(n int) []Frame {
	var lines []Frame
	for _, f := range o.Frames {
		if f.ofUser() && len(lines) < n {
			lines = append(lines, f)
		}
	}
	if lines == nil {
		lines = o.Frames[:min(n, len(o.Frames))]
	}
	return lines
}

func (o *Owner) String() string {
	if len(o.Frames) == 0 {
		return "(no stack recorded)"
	}
	var names []string
	for _, f := range o.Lines(3) {
		names = append(names, f.String())
	}
	return strings.Join(names, " < ")
}

// rules name a category by what the file or the function of a frame contains.
var rules = []struct{ part, category string }{
	{"all_to_all", "communication"}, {"all_gather", "communication"}, {"allgather", "communication"}, {"reduce_scatter", "communication"}, {"all_reduce", "communication"},
	{"_c10d_functional", "communication"}, {"distributed_c10d", "communication"},
	{"optim/", "optimizer"}, {"_init_group", "optimizer"}, {"optimizer", "optimizer"},
	{"backward", "gradient"}, {"forward", "activation"},
}

// parts are what titan-run's owners end with.
var parts = map[string]string{
	"parameters": "parameter", "gradients": "gradient", "optimizer": "optimizer", "forward": "activation", "backward": "gradient",
	"constants": "constant", "inputs and constants": "constant",
}

// Category guesses what memory is for from its call stack, "unknown" if no rule matches: the innermost frame decides.
func (o *Owner) Category() string {
	if n := len(o.Frames); n > 0 && o.Frames[n-1].File == "" && parts[o.Frames[n-1].Name] != "" {
		return ofTitan(o.Frames)
	}
	for _, f := range o.Frames {
		for _, r := range rules {
			if strings.Contains(f.File, r.part) || strings.Contains(f.Name, r.part) {
				return r.category
			}
		}
	}
	return "unknown"
}

// ofTitan is the category of one of titan-run's owners: what, of which module, in which part.
func ofTitan(frames []Frame) string {
	for _, op := range []string{"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "recv"} {
		if strings.HasPrefix(frames[0].Name, op) {
			return "communication"
		}
	}
	return parts[frames[len(frames)-1].Name]
}

// interner gives equal stacks, frames and labels one number each.
type interner struct {
	frames  map[Frame]int32
	known   []Frame
	owners  map[string]int32 // by the numbers of their frames
	byName  map[string]int32 // those of titan-run
	list    []Owner
	labels  map[string]int32
	names   []string
	scratch []byte
}

func newInterner() *interner {
	return &interner{
		frames: map[Frame]int32{}, owners: map[string]int32{"": 0}, list: make([]Owner, 1),
		byName: map[string]int32{}, labels: map[string]int32{"": 0}, names: []string{""},
	}
}

// frame is the number of f, whose strings may be a file's: they are copied if they are new.
func (n *interner) frame(f Frame) int32 {
	if at, ok := n.frames[f]; ok {
		return at
	}
	f.Name, f.File = strings.Clone(f.Name), strings.Clone(f.File)
	at := int32(len(n.known))
	n.frames[f] = at
	n.known = append(n.known, f)
	return at
}

// owner is the number of a stack of frames.
func (n *interner) owner(frames []int32) int32 {
	n.scratch = n.scratch[:0]
	for _, f := range frames {
		n.scratch = binary.LittleEndian.AppendUint32(n.scratch, uint32(f))
	}
	if at, ok := n.owners[string(n.scratch)]; ok {
		return at
	}
	at := int32(len(n.list))
	n.owners[string(n.scratch)] = at
	o := Owner{Frames: make([]Frame, len(frames))}
	for i, f := range frames {
		o.Frames[i] = n.known[f]
	}
	n.list = append(n.list, o)
	return at
}

// named is the number of an owner of titan-run's traces, by its name: frames without files, as Owner.String joins them.
func (n *interner) named(name string) int32 {
	at, ok := n.byName[name]
	if !ok {
		var frames []int32
		for _, part := range strings.Split(name, " < ") {
			frames = append(frames, n.frame(Frame{Name: part}))
		}
		at = n.owner(frames)
		n.byName[strings.Clone(name)] = at
	}
	return at
}

func (n *interner) label(name string) int32 {
	at, ok := n.labels[name]
	if !ok {
		name = strings.Clone(name)
		at = int32(len(n.names))
		n.labels[name] = at
		n.names = append(n.names, name)
	}
	return at
}
