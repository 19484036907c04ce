// Package nn holds the modules that models are made of. A module declares its parameters with their fully
// qualified names and initial distributions, and its Forward traces ops on logical, whole-model shapes.
package nn

// Param is a parameter: its name in checkpoints, its whole shape, and how it starts.
type Param struct {
	FQN   string
	Shape []int64
	Init  Init
}

// Init is the distribution that a parameter starts from.
type Init struct {
	Kind InitKind
	Std  float64 // of the normal before truncation; the mean is 0
	Cut  float64 // TruncNormal: values lie within ±Cut
}

// InitKind names a distribution.
type InitKind uint8

// The distributions.
const (
	Ones InitKind = iota
	Normal
	TruncNormal
)

// NumElements is the number of values the parameter holds.
func (p *Param) NumElements() int64 {
	n := int64(1)
	for _, d := range p.Shape {
		n *= d
	}
	return n
}
