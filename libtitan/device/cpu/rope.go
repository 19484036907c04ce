package cpu

// Rope rotates interleaved pairs (x[2i], x[2i+1]) of each head by the angle of its position (Su et al., 2021): with c and s from
// the tables, y[2i] = x[2i]c - x[2i+1]s and y[2i+1] = x[2i+1]c + x[2i]s. inverse turns the other way, which is the backward.
// x and y are [B, S, N, H], cos and sin [S, H/2]; y may be x.
func (e *Engine) Rope(y, x, cos, sin []float32, B, S, N, H int, inverse bool) {
	rope(e, y, x, cos, sin, B, S, N, H, inverse)
}

// RopeBF16 is [Engine.Rope] on bfloat16 x and y; the tables stay float32.
func (e *Engine) RopeBF16(y, x []uint16, cos, sin []float32, B, S, N, H int, inverse bool) {
	rope(e, y, x, cos, sin, B, S, N, H, inverse)
}

func rope[T elem](e *Engine, y, x []T, cos, sin []float32, B, S, N, H int, inverse bool) {
	sign := float32(1)
	if inverse {
		sign = -1
	}
	row, half := N*H, H/2
	e.For(B*S, rowGrain, func(lo, hi int) {
		ar := e.borrow(2*scratchFor[T](row), 2)
		defer e.giveBack(ar)
		bx, by := ar.take(scratchFor[T](row)), ar.take(scratchFor[T](row))
		for i := lo; i < hi; i++ {
			c, s := cos[i%S*half:][:half], sin[i%S*half:][:half]
			xr, out := widened(e.k, bx, x[i*row:][:row]), y[i*row:][:row]
			yr := target(by, out)
			e.k.rope(yr, xr, c, s, sign)
			stored(e.k, out, yr)
		}
	})
}
