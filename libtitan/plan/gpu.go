package plan

// ForGPU arranges p as a GPU runs it: copies of parameters are kept from step to step, sums are made by the products before
// them, gradients are as narrow as their products, the embedding's has the rows of the step's tokens, products of layers that read
// one input are one, largest magnitudes are found where values are made, FSDP's moves run beside the work, its gathers in windows,
// its reductions into gradients, and gradients share the arena.
func (p *Program) ForGPU() {
	p.Rearrange()
	p.ReduceIntoGrads()
	p.PlaceWindows()
	p.PlaceGrads()
}

// ForCache arranges p as a GPU runs it whose values lie in a caching allocator.
func (p *Program) ForCache() {
	p.Rearrange()
	p.PlaceGrads()
}

// Rearrange is what the two have in common: other steps at other times, smaller gradients, and nothing placed but side by side.
func (p *Program) Rearrange() {
	p.KeepCopies()
	p.SumInProducts()
	p.NarrowGrads()
	p.GradsByRows()
	p.JoinProducts()
	p.LargestWhereMade()
	p.Overlap()
}

// PlannedBytes is all the memory that p's step takes beside parameters, their moments and gradients of their own.
func (p *Program) PlannedBytes() int {
	return p.ArenaBytes + p.WindowBytes + p.ConstBytes + p.CopyBytes()
}
