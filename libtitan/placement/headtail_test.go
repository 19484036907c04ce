package placement

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHeadTailBalancesCausalWork(t *testing.T) {
	const n, ranks = 24, 3
	seen := map[int]bool{}
	work := make([]int, ranks)
	for i := range n {
		p := HeadTail(n, 2*ranks, i)
		require.False(t, seen[p])
		seen[p] = true
		work[i/(n/ranks)] += p + 1 // keys that the query attends to
	}
	require.Equal(t, []int{100, 100, 100}, work)
	require.Equal(t, 7, HeadTail(n, 0, 7))
}
