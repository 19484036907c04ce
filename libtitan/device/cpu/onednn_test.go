package cpu

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOneDNN(t *testing.T) {
	e, err := New(Options{Threads: 2, Products: "onednn"})
	if err != nil {
		require.ErrorContains(t, err, "install libdnnl2, or use builtin")
		t.Skip("SKIPPED: no oneDNN here, .ci/run installs it: " + err.Error())
	}
	require.Contains(t, e.Name(), "+onednn")
	var ranks sync.WaitGroup
	for rank := range 3 {
		ranks.Go(func() { checkProducts(t, e, 20+13*rank, 17, 33) })
	}
	ranks.Wait()
	checkProducts(t, e, 3, 4, 0)
	checkProducts(t, e, 0, 4, 2)
}

// checkProducts runs each form of product in all transpositions.
func checkProducts(t *testing.T, e *Engine, m, n, k int) {
	for mode := range 8 {
		ta, tb, acc := mode&1 != 0, mode&2 != 0, mode&4 != 0
		lda, na := stored2(ta, m, k, 1)
		ldb, nb := stored2(tb, k, n, 2)
		a, b, c := random(1, na), random(2, nb), random(3, m*n)
		want := refGemm(ta, tb, m, n, k, a, b, c, lda, ldb, n, acc)
		e.Gemm(ta, tb, m, n, k, a, b, c, lda, ldb, n, acc)
		near(t, want, c, 1e-5, "float32 mode", mode)

		ah, bh := bf16(a), bf16(b)
		want = refGemm(ta, tb, m, n, k, fromBF16(ah), fromBF16(bh), c, lda, ldb, n, acc)
		e.GemmBF16(ta, tb, m, n, k, ah, bh, c, lda, ldb, n, acc)
		near(t, want, c, 1e-5, "bfloat16 mode", mode)
		if !acc {
			out := make([]uint16, m*n)
			e.GemmBF16Out(ta, tb, m, n, k, ah, bh, out, lda, ldb, n)
			near(t, want, fromBF16(out), 4e-3, "bfloat16 out mode", mode)
		}
	}
}
