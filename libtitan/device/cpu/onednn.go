package cpu

import "errors"

type dnnl struct{}

func loadDNNL() (*dnnl, error) {
	return nil, errors.New("cpu engine: products onednn: not in this build: use builtin")
}

func (d *dnnl) sgemm(transA, transB bool, m, n, k int, a, b, c []float32, lda, ldb, ldc int, accumulate bool) {
}
func dnnlMatmul[C elem](d *dnnl, transA, transB bool, m, n, k int, a, b []uint16, c []C, lda, ldb, ldc int, accumulate bool) {
}
