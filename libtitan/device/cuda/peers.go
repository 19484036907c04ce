package cuda

// Bind loads another library of NVIDIA's, found as this package finds its own, and its functions. name is what people
// call it, the newest of sonames comes first, fix says how to get it.
func Bind(name string, sonames []string, fix string, functions map[string]*uintptr) error {
	return systemFinder().bind(library{name, sonames, fix}, functions)
}

// Span is bytes of the device's memory from P on.
type Span struct {
	P     Ptr
	Bytes int
}

// Gathered is a tensor of an all-gather: Out[i] becomes what member i gives as Mine. Lengths may differ by member and
// may be 0; Mine may be this rank's own part of Out.
type Gathered struct {
	Mine Span
	Out  []Span
}

// Scattered is a tensor of a reduce-scatter: Out becomes the reduction of the members' Pieces[me].
type Scattered struct {
	Pieces []Span
	Out    Span
}

// Reduced is a tensor of an all-reduce: Out, which may be In, becomes the reduction of the members' In.
type Reduced struct{ In, Out Span }

// Adjacent reports whether spans follow each other in memory, all of one length: what a collective can take as one.
func Adjacent(spans []Span) bool {
	for i, s := range spans {
		if s.Bytes != spans[0].Bytes || s.P != spans[0].P+Ptr(i*s.Bytes) {
			return false
		}
	}
	return true
}
