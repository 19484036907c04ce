package snapshot

import "regexp"

// layerNumber is that of a layer in an FQN.
var layerNumber = regexp.MustCompile(`^layers\.\d+\b`)

// MergeLayers makes one owner of those of titan-run that differ in the number of their layer alone: what stacks up in a
// model stacks up layer by layer, and no single layer says so. Call stacks stay as they are.
func (s *Snapshot) MergeLayers() {
	n := newInterner()
	to := make([]int32, len(s.Owners))
	for id := range s.Owners {
		frames := s.Owners[id].Frames
		merged := make([]int32, len(frames))
		for i, f := range frames {
			if f.File == "" {
				f.Name = layerNumber.ReplaceAllString(f.Name, "layers.*")
			}
			merged[i] = n.frame(f)
		}
		to[id] = n.owner(merged)
	}
	s.Owners = n.list
	for i := range s.Devices {
		d := &s.Devices[i]
		for j := range d.Trace {
			d.Trace[j].Owner = to[d.Trace[j].Owner]
		}
		for _, seg := range d.Segments {
			for j := range seg.Blocks {
				seg.Blocks[j].Owner = to[seg.Blocks[j].Owner]
			}
		}
	}
}
