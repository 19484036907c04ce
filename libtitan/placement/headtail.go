package placement

// HeadTail is the position in a sequence of n of row i, where the sequence is cut into pieces, and rank r of
// pieces/2 takes piece r and piece pieces-1-r: then causal attention costs every rank the same. With 0 pieces rows
// are in their own order. n is a multiple of pieces.
func HeadTail(n, pieces, i int) int {
	if pieces == 0 {
		return i
	}
	size := n / pieces
	k := i / size // the k-th piece in this order
	piece := k / 2
	if k%2 == 1 {
		piece = pieces - 1 - k/2
	}
	return piece*size + i%size
}
