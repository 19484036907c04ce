package exec

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestContractionsAsProducts(t *testing.T) {
	for _, c := range []struct {
		spec string
		a, b []int
		want product
	}{
		{"bsk,nk->bsn", []int{2, 3, 5}, []int{7, 5}, product{m: 6, n: 7, k: 5, transB: true}},
		{"bsn,nk->bsk", []int{2, 3, 7}, []int{7, 5}, product{m: 6, n: 5, k: 7}},
		{"bsn,bsk->nk", []int{2, 3, 7}, []int{2, 3, 5}, product{m: 7, n: 5, k: 6, transA: true}},
		{"kn,mk->mn", []int{5, 7}, []int{6, 5}, product{m: 6, n: 7, k: 5, swap: true}},
	} {
		got, err := lower(c.spec, c.a, c.b)
		require.NoError(t, err, c.spec)
		require.Equal(t, c.want, got, c.spec)
	}
	for _, spec := range []string{"bij,bjk->bik", "sbk,nk->bsn"} {
		_, err := lower(spec, []int{2, 3, 4}, []int{2, 4, 5})
		require.ErrorContains(t, err, spec)
	}
}
