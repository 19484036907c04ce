package plan

import (
	"titan/libtitan/dtype"
	"titan/libtitan/graph"
)

// GradsByRows keeps of an embedding's gradient the rows alone that a step's tokens touch, where one step makes all of it and that is
// fewer bytes than the table. It has a row a token then: that of the first token with an id is the id's sum, and those of the others
// are not written. Beside it lies, int32, for each row of the table the token that has its gradient, -1 where that is 0.
func (p *Program) GradsByRows() {
	for slot, s := range p.madeAtOnce() {
		if s.Kind != Compute || s.Node.Op.Name != "embedding_backward" {
			continue
		}
		numTokens, numRows, dim := s.In[1].NumElements(), slot.Shape[0], slot.Shape[1]
		rows := &Slot{Type: graph.Type{DType: dtype.Int32, Shape: []int{numRows}}, Class: Rows, Name: slot.Name}
		byRows := graph.Type{DType: slot.DType, Shape: []int{numTokens, dim}}
		if dim*slot.DType.Size()%vector != 0 || byRows.Bytes()+rows.Bytes() >= slot.Bytes() {
			continue
		}
		slot.Type = byRows
		s.Out, s.Add = append(s.Out, rows), append(s.Add, false)
	}
}
