package cuda

// common are the kernels that every model uses, compiled when an engine is made. Those that have a form for each shape
// are compiled when a shape asks for them.
func common(clusters bool) []source {
	return []source{elementwiseKernels(), embeddingKernels(), lossKernels(clusters), optimKernels()}
}

// clusters reports whether blocks may form clusters.
func (e *Engine) clusters() bool { return e.Major >= 9 }
