package llama3

import (
	"regexp"

	"titan/libtitan/placement"
)

// tensorParallel says which dim of a parameter is cut over tp; parameters that no row names are copied. A weight is
// [out, in]: cutting out cuts its result's channels, cutting in makes its result a sum of parts.
var tensorParallel = []struct {
	fqn *regexp.Regexp
	dim int
}{
	{regexp.MustCompile(`^tok_embeddings\.weight$`), 0},
	{regexp.MustCompile(`^layers\.\d+\.attention\.w[qkv]\.weight$`), 0},
	{regexp.MustCompile(`^layers\.\d+\.attention\.wo\.weight$`), 1},
	{regexp.MustCompile(`^layers\.\d+\.feed_forward\.w[13]\.weight$`), 0},
	{regexp.MustCompile(`^layers\.\d+\.feed_forward\.w2\.weight$`), 1},
	{regexp.MustCompile(`^lm_head\.weight$`), 0},
}

// Placement is how a parameter of that many dims lies where it is computed with.
func Placement(fqn string, dims int, live placement.Axes) placement.Layout {
	l := placement.Replicated(dims)
	for _, row := range tensorParallel {
		if live.Has(placement.TP) && row.fqn.MatchString(fqn) {
			return l.Cut(row.dim, placement.TP)
		}
	}
	return l
}
