package cpu

import "unsafe"

// GemmBF16 is [Engine.Gemm] on bfloat16 A and B with a float32 C; products and sums are float32.
func (e *Engine) GemmBF16(transA, transB bool, m, n, k int, a, b []uint16, c []float32, lda, ldb, ldc int, accumulate bool) {
	gemmBF16(e, transA, transB, m, n, k, a, b, c, lda, ldb, ldc, accumulate)
}

// GemmBF16Out is [Engine.GemmBF16] with a bfloat16 C, rounded once after the last term.
func (e *Engine) GemmBF16Out(transA, transB bool, m, n, k int, a, b, c []uint16, lda, ldb, ldc int) {
	gemmBF16(e, transA, transB, m, n, k, a, b, c, lda, ldb, ldc, false)
}

func gemmBF16[C elem](e *Engine, transA, transB bool, m, n, k int, a, b []uint16, c []C, lda, ldb, ldc int, accumulate bool) {
	oa, ob := operand[uint16]{a, lda, transA}, operand[uint16]{b, ldb, transB}
	if e.dnnl != nil && m > 0 && n > 0 && k > 0 && !accumulate && dnnlMatmul(e.dnnl, m, n, k, oa, ob, c, ldc) {
		return
	}
	tile, perSlot := e.k.tile, 1
	if e.k.tilePairs != nil {
		tile, perSlot = e.k.tilePairs, 2
	}
	g := gemm[uint16, C]{e, tile, perSlot, oa, ob, c, ldc}
	g.run(m, n, k, accumulate)
}

// pairsOf views bfloat16 memory as pairs, each in the place of a float32.
func pairsOf(x []uint16) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(x))), len(x)/2)
}

// bf16Of views float32 scratch as bfloat16.
func bf16Of(x []float32) []uint16 {
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(x))), 2*len(x))
}

// packPairs fills a panel of B with pairs, w <= nr columns from (p,j) on: row s holds elements 2s and 2s+1 of each column side by side.
func packPairs(k *kernels, out, scratch []float32, b operand[uint16], p, j, kc, w int) {
	nr := k.nr
	if !b.trans {
		for s := 0; 2*s < kc; s++ {
			b.interleave(bf16Of(out[s*nr:][:w]), p+2*s, j, w, p+kc)
		}
		return
	}
	rows, steps := bf16Of(scratch), (kc+1)/2
	copyPadded(rows, b.x[j*b.ld+p:], b.ld, w, kc)
	k.transpose(out, nr, pairsOf(rows), steps, w, steps)
}

// pairRows fills dst with a block of op(A) as pairs and gives its strides in pairs; rows up to padded are zero.
func pairRows(dst []float32, a operand[uint16], i, p, rows, padded, kc int) (rs, ps int) {
	steps := (kc + 1) / 2
	clear(dst[:padded*steps])
	if !a.trans {
		copyPadded(bf16Of(dst), a.x[i*a.ld+p:], a.ld, rows, kc)
		return steps, 1
	}
	for s := range steps {
		a.interleave(bf16Of(dst[s*padded:][:rows]), p+2*s, i, rows, p+kc)
	}
	return 1, padded
}

// copyPadded copies rows of cols elements, ld apart, to rows of whole pairs.
func copyPadded(dst, src []uint16, ld, rows, cols int) {
	even := cols + cols&1
	for r := range rows {
		row := dst[r*even:][:even]
		clear(row[copy(row, src[r*ld:][:cols]):])
	}
}

// interleave pairs n elements of stored row p with those of row p+1, or with zeros when that is end.
func (o operand[T]) interleave(dst []T, p, j, n, end int) {
	low := o.x[p*o.ld+j:][:n]
	if p+1 == end {
		for i, l := range low {
			dst[2*i], dst[2*i+1] = l, 0
		}
		return
	}
	high := o.x[(p+1)*o.ld+j:][:n]
	for i, l := range low {
		dst[2*i], dst[2*i+1] = l, high[i]
	}
}
