package cpu

// Blocking of matrix products. An element of C is a sum over blocks of blockK terms in ascending order, each block one chain
// of fused multiply-adds: that, and nothing else here, decides the bits.
const (
	blockK = 256 // a panel of B (blockK x nr) stays in the 32 KiB L1 cache
	blockM = 48  // rows of C in a task; a multiple of every mr. blockM x blockK of A stays in the L2 cache
	blockN = 512 // columns of C in a task, at most

	packPanels = 8 // panels of B packed in a task

	packK = 4096 // at most packK x packN of B is packed at a time: 8 MiB
	packN = 512
)

// Gemm computes C = op(A)·op(B), or C += op(A)·op(B) when accumulate is set. op(A) is m x k, op(B) k x n, C m x n; op(X) is X,
// or X transposed when its flag is set. ld* are the floats from one stored row to the next.
//
// With k = 0 and accumulate unset, C becomes zero. C must not overlap A or B.
func (e *Engine) Gemm(transA, transB bool, m, n, k int, a, b, c []float32, lda, ldb, ldc int, accumulate bool) {
	if e.dnnl != nil && m > 0 && n > 0 && k > 0 && e.dnnl.sgemm(transA, transB, m, n, k, a, b, c, lda, ldb, ldc, accumulate) {
		return
	}
	g := gemm[float32, float32]{e, e.k.tile, 1, operand[float32]{a, lda, transA}, operand[float32]{b, ldb, transB}, c, ldc}
	g.run(m, n, k, accumulate)
}

// operand is a stored matrix and how to read it: element (i,j) of op(X) is x[i*ld+j], or x[j*ld+i] when trans is set.
type operand[T elem] struct {
	x     []T
	ld    int
	trans bool
}

// gemm is one product: inputs of type T, output of type C. Where the CPU multiplies pairs of bfloat16, packed A and B hold
// perSlot = 2 elements of k, the even one low, in the place of one float32, zero after an odd end; else perSlot = 1.
type gemm[T, C elem] struct {
	e       *Engine
	tile    tileFunc
	perSlot int
	a       operand[T]
	b       operand[T]
	c       []C
	ldc     int
}

// slots is how many steps the tile takes over kc elements of k.
func (g *gemm[T, C]) slots(kc int) int { return (kc + g.perSlot - 1) / g.perSlot }

// run walks over parts of B that are packed once and shared by all tasks.
func (g *gemm[T, C]) run(m, n, k int, accumulate bool) {
	if k == 0 && !accumulate {
		for i := range m {
			clear(g.c[i*g.ldc:][:n])
		}
	}
	e := g.e
	stepK, stepN := packK, packN
	if scratchFor[C](1) > 0 && k > packK { // a bfloat16 C cannot hold the sums of one part of k
		stepK, stepN = k, max(1, packK*packN/k/e.k.nr)*e.k.nr
	}
	for j := 0; m > 0 && j < n; j += stepN {
		cols := min(stepN, n-j)
		for p := 0; p < k; p += stepK {
			depth := min(stepK, k-p)
			size := g.slots(depth) * roundUp(cols, e.k.nr)
			packed := e.borrow(size, 1)
			bp := packed.take(size)
			g.packB(bp, p, j, depth, cols)
			g.tasks(bp, p, j, m, depth, cols, accumulate || p > 0)
			e.giveBack(packed)
		}
	}
}

// packB copies rows [p0,p0+depth) and columns [j0,j0+cols) of op(B) into panels: for each block of blockK rows, for each nr
// columns, the rows one after the other, nr wide, zeros beyond cols.
func (g *gemm[T, C]) packB(dst []float32, p0, j0, depth, cols int) {
	nr := g.e.k.nr
	width, group := roundUp(cols, nr), packPanels*nr
	blocks, groups := (depth+blockK-1)/blockK, (cols+group-1)/group
	g.e.For(blocks*groups, 1, func(lo, hi int) {
		ar := g.e.borrow(scratchFor[T](nr*blockK), 1)
		defer g.e.giveBack(ar)
		wide := ar.take(scratchFor[T](nr * blockK))
		for t := lo; t < hi; t++ {
			p, j := t/groups*blockK, t%groups*group
			kc, w := min(blockK, depth-p), min(group, cols-j)
			steps := g.slots(kc)
			g.packGroup(dst[g.slots(p)*width+j*steps:][:steps*roundUp(w, nr)], wide, p0+p, j0+j, kc, w)
		}
	})
}

// packGroup copies kc rows and w columns of op(B) from (p,j) on; wide is scratch for bfloat16.
func (g *gemm[T, C]) packGroup(out, wide []float32, p, j, kc, w int) {
	k, b := g.e.k, g.b
	size := g.slots(kc) * k.nr
	for x := 0; x < w; x += k.nr {
		panel, n := out[x/k.nr*size:][:size], min(k.nr, w-x)
		if n < k.nr {
			clear(panel)
		}
		switch {
		case g.perSlot == 2:
			packPairs(k, panel, wide, any(b).(operand[uint16]), p, j+x, kc, n)
		case b.trans:
			src, stride := rowsWide(k, wide, b.x[(j+x)*b.ld+p:], b.ld, n, kc)
			k.transpose(panel, k.nr, src, stride, n, kc)
		default:
			copyRowsWide(k, panel, k.nr, b.x[p*b.ld+j+x:], b.ld, kc, n)
		}
	}
}

// rowsWide gives rows of cols elements, ld apart, as float32: in place, or widened into buf. It returns their new distance.
func rowsWide[T elem](k *kernels, buf []float32, x []T, ld, rows, cols int) ([]float32, int) {
	if f, ok := any(x).([]float32); ok {
		return f, ld
	}
	copyRowsWide(k, buf, cols, x, ld, rows, cols)
	return buf, cols
}

// tasks computes columns [j0,j0+cols) of C from a packed part of B, a task of at most blockM x blockN elements at a time.
func (g *gemm[T, C]) tasks(bp []float32, p0, j0, m, depth, cols int, add bool) {
	k := g.e.k
	span := taskSpan(m, cols, g.e.threads)
	down, across := (m+blockM-1)/blockM, (cols+span-1)/span
	g.e.For(down*across, 1, func(lo, hi int) {
		t := &task[T, C]{gemm: g, k: k, add: add}
		ar := g.e.borrow(k.mr*k.nr+scratchFor[C](blockM*blockN)+blockM*blockK, 3)
		defer g.e.giveBack(ar)
		t.edge, t.out, t.ap = ar.take(k.mr*k.nr), ar.take(scratchFor[C](blockM*blockN)), ar.take(blockM*blockK)
		for x := lo; x < hi; x++ {
			i, j := x/across*blockM, x%across*span
			t.block(bp, roundUp(cols, k.nr), p0, j0, i, j, min(blockM, m-i), min(span, cols-j), depth)
		}
	})
}

// taskSpan chooses the columns of C in a task, a multiple of every nr: blockN, or fewer while threads would have under three tasks
// each. Narrow tasks pack A again for each, so they are the exception. No bits depend on it.
func taskSpan(m, n, threads int) int {
	span := blockN
	for span > blockN/4 && (m+blockM-1)/blockM*((n+span-1)/span) < 3*threads {
		span /= 2
	}
	return span
}

// task is the scratch of one worker: packed rows of A, the tile of C that sticks out, the float32 form of a bfloat16 C.
type task[T, C elem] struct {
	*gemm[T, C]
	k             *kernels
	ap, edge, out []float32
	add           bool
}

// block computes rows x cols of C at (i, j0+j); width is the padded width of the packed part.
func (t *task[T, C]) block(bp []float32, width, p0, j0, i, j, rows, cols, depth int) {
	c, ldc := t.out, blockN
	wide := scratchFor[C](1) > 0
	if !wide {
		c, ldc = target(nil, t.c[i*t.ldc+j0+j:][:(rows-1)*t.ldc+cols]), t.ldc
	}
	for p := 0; p < depth; p += blockK {
		kc := min(blockK, depth-p)
		t.product(bp[t.slots(p)*width+j*t.slots(kc):], c, ldc, i, p0+p, rows, cols, kc, t.add || p > 0)
	}
	if wide {
		for r := range rows {
			stored(t.k, t.c[(i+r)*t.ldc+j0+j:][:cols], c[r*ldc:][:cols])
		}
	}
}

// product adds (or writes) one block of k: full tiles go to C directly, the rest through edge.
func (t *task[T, C]) product(bp, c []float32, ldc, i, p, rows, cols, kc int, add bool) {
	mr, nr := t.k.mr, t.k.nr
	a, rs, ps, strip := t.rowsOfA(i, p, rows, kc)
	kc = t.slots(kc)
	for y := 0; y < cols; y += nr {
		panel := &bp[y*kc]
		for x := 0; x < rows; x += mr {
			from := at(&a[0], x/mr*strip)
			if x+mr <= rows && y+nr <= cols {
				t.tile(kc, from, rs, ps, panel, nr, 0, &c[x*ldc+y], ldc, 1, add)
				continue
			}
			t.tileEdge(kc, from, rs, ps, panel, c[x*ldc+y:], ldc, min(mr, rows-x), min(nr, cols-y), add)
		}
	}
}

// rowsOfA gives a block of op(A), the strides of its rows and of k, and the distance of its strips of mr rows. A float32 A that is
// not transposed is read where it lies; the others are copied, and so are the rows at the lower edge, padded to whole strips.
func (t *task[T, C]) rowsOfA(i, p, rows, kc int) (a []float32, rs, ps, strip int) {
	mr := t.k.mr
	padded := roundUp(rows, mr)
	f, isF32 := any(t.a.x).([]float32)
	switch {
	case t.perSlot == 2:
		rs, ps = pairRows(t.ap, any(t.a).(operand[uint16]), i, p, rows, padded, kc)
		return t.ap, rs, ps, mr * rs
	case t.a.trans && isF32:
		t.k.packStrips(t.ap, f[p*t.a.ld+i:], t.a.ld, kc, rows, mr)
		return t.ap, 1, mr, mr * kc
	case t.a.trans:
		clear(t.ap[:kc*padded])
		copyRowsWide(t.k, t.ap, padded, t.a.x[p*t.a.ld+i:], t.a.ld, kc, rows)
		return t.ap, 1, padded, mr
	case isF32 && rows == padded:
		return f[i*t.a.ld+p:][:(rows-1)*t.a.ld+kc], t.a.ld, 1, mr * t.a.ld
	}
	copyRowsWide(t.k, t.ap, kc, t.a.x[i*t.a.ld+p:], t.a.ld, rows, kc)
	clear(t.ap[rows*kc : padded*kc])
	return t.ap, kc, 1, mr * kc
}

// tileEdge computes a whole tile aside and moves the rows x cols of it that exist.
func (t *task[T, C]) tileEdge(kc int, a *float32, rs, ps int, panel *float32, c []float32, ldc, rows, cols int, add bool) {
	nr := t.k.nr
	if add {
		for r := range rows {
			copy(t.edge[r*nr:][:cols], c[r*ldc:][:cols])
		}
	}
	t.tile(kc, a, rs, ps, panel, nr, 0, &t.edge[0], nr, 1, add)
	for r := range rows {
		copy(c[r*ldc:][:cols], t.edge[r*nr:][:cols])
	}
}
