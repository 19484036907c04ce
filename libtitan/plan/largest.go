package plan

import (
	"slices"

	"titan/libtitan/op"
)

// tellsLargest are the ops, of one result, whose kernels on a GPU can tell the largest magnitude of what they write.
var tellsLargest = map[string]bool{"rope": true}

// LargestWhereMade has the step that makes a value tell its largest magnitude, as one more result, if its kernel can: the step that
// would read the value again for that is left out.
func (p *Program) LargestWhereMade() {
	u, told := p.usesOf(), map[int]bool{}
	for i := range p.Steps {
		if maker := u.tells(&p.Steps[i]); maker != nil {
			maker.Out, maker.Add = append(slices.Clone(maker.Out), p.Steps[i].Out[0]), append(slices.Clone(maker.Add), false)
			told[i] = true
		}
	}
	p.leaveOut(told)
}

// tells is the step that can tell what s finds: it makes all of the value whose largest magnitude s is.
func (u uses) tells(s *Step) *Step {
	if s.Kind != Compute {
		return nil
	}
	x := s.In[0].Root()
	if a, ok := s.Node.Attr.(op.AmaxAttr); !ok || a.Per != op.PerTensor || x.Bytes() != s.In[0].Bytes() || len(u.writes[x]) != 1 {
		return nil
	}
	maker := &u.p.Steps[u.writes[x][0]]
	if maker.Kind != Compute || !tellsLargest[maker.Node.Op.Name] || len(maker.Out) > 1 {
		return nil
	}
	return maker
}
