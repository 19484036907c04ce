package cuda

import "math"

// The ids of the tensors that lie in memory.
const (
	idQ = iota + 1
	idK
	idV
	idO
	idLSE
	idDO
	idDQ
	idDK
	idDV
	idDelta // scratch: row sums of do·o
	idSumDQ // scratch: dq in float32
)

// attnGraph describes attention to cuDNN: its tensors are [batch, heads, rows, columns] with the strides of memory that
// is [batch, rows, heads, columns].
type attnGraph struct {
	*builder
	b, sq, sk, hq, hk, d int64
	masked               bool  // causal; else all queries see all keys
	gap                  int64 // between rows of dv
}

func (e *Engine) attnPlan(s AttnShape, backward bool, gap int) (*dnnPlan, error) {
	lib, err := e.cudnn()
	if err != nil {
		return nil, err
	}
	masked := !s.seesAll()
	s.QStart, s.KStart = 0, 0
	key := dnnKey{s, masked, backward, gap}
	if p := lib.plans[key]; p != nil {
		return p, nil
	}
	g := attnGraph{lib.builder(), int64(s.Batch), int64(s.SeqQ), int64(s.SeqK), int64(s.Heads), int64(s.KVHeads), int64(s.HeadDim), masked, int64(gap)}
	if backward {
		g.backward(s.Scale, e.Deterministic)
	} else {
		g.forward(s.Scale)
	}
	p, err := g.plan()
	if err == nil {
		lib.plans[key] = p
	}
	return p, err
}

func (e *Engine) fusedAttention(o, lse, q, k, v Ptr, s AttnShape) (Work, error) {
	p, err := e.attnPlan(s, false, 0)
	if err != nil {
		return nil, err
	}
	return e.bindPlan(p, "cuDNN attention", map[int64]Ptr{idQ: q, idK: k, idV: v, idO: o, idLSE: lse})
}

func (e *Engine) fusedAttentionBackward(dq, dk Ptr, dv Columns, do, q, k, v, o, lse Ptr, s AttnShape) (Work, error) {
	p, err := e.attnPlan(s, true, dv.gap(s.KVHeads*s.HeadDim))
	if err != nil {
		return nil, err
	}
	rows := s.Batch * s.Heads * s.SeqQ
	// cuDNN's workspace, delta and the accumulator are in use at once.
	workspace, delta := roundUp(p.workspace, 256), roundUp(4*rows, 256)
	room, err := e.scratchFor(workspace + delta + 4*rows*s.HeadDim)
	if err != nil {
		return nil, err
	}
	tensors := map[int64]Ptr{idQ: q, idK: k, idV: v, idO: o, idLSE: lse, idDO: do, idDQ: dq, idDK: dk, idDV: dv.P, idDelta: room + Ptr(workspace)}
	if !e.Deterministic {
		tensors[idSumDQ] = room + Ptr(workspace+delta)
	}
	return e.bindPlan(p, "cuDNN attention backward", tensors)
}

func (g *attnGraph) scores() dims { return dims{g.b, g.hq, g.sq, g.sk} }
func (g *attnGraph) rows() dims   { return dims{g.b, g.hq, g.sq, 1} }

// queries and keys are tensors in memory with a row for each.
func (g *attnGraph) queries(id int64) dnnTensor { return g.heads(g.hq, g.sq, g.hq*g.d, id) }
func (g *attnGraph) keys(id int64) dnnTensor    { return g.heads(g.hk, g.sk, g.hk*g.d, id) }

// heads is a tensor of s rows, row elements apart.
func (g *attnGraph) heads(h, s, row, id int64) dnnTensor {
	return g.tensor(dnnBF16, dims{g.b, h, s, g.d}, dims{s * row, g.d, row, 1}, id, false)
}

// transposed are keys with rows and columns exchanged: the second operand of a product.
func (g *attnGraph) transposed(id int64) dnnTensor {
	return g.tensor(dnnBF16, dims{g.b, g.hk, g.d, g.sk}, dims{g.sk * g.hk * g.d, g.d, 1, g.hk * g.d}, id, false)
}

func (g *attnGraph) perRow(id int64) dnnTensor {
	return g.tensor(dnnFloat, g.rows(), g.rows().dense(), id, false)
}

// causal keeps scores where row >= column and sets the others to minus infinity.
func (g *attnGraph) causal(score dnnTensor) dnnTensor {
	if !g.masked {
		return score
	}
	row := g.pointwise(opIndex, dnnFloat, 2, g.virtual(dnnInt32, score.sizes), score)
	column := g.pointwise(opIndex, dnnFloat, 3, g.virtual(dnnInt32, score.sizes), score)
	keep := g.pointwise(opNotLess, dnnBool, 0, g.virtual(dnnBool, score.sizes), row, column)
	return g.float(opSelect, score, g.scalar(float32(math.Inf(-1))), keep)
}

// forward is o = softmax(scale·q·kᵀ)·v with its log-sum-exp. The engines know the graph by its order.
func (g *attnGraph) forward(scale float32) {
	q, kT, v := g.queries(idQ), g.transposed(idK), g.keys(idV)
	s := g.virtual(dnnFloat, g.scores())
	g.matmul(q, kT, s)
	s = g.causal(g.float(opMul, s, g.scalar(scale)))
	top := g.reduce(reduceMax, s, g.virtual(dnnFloat, g.rows()))
	e := g.float(opExp, g.float(opSub, s, top))
	sum := g.reduce(reduceSum, e, g.virtual(dnnFloat, g.rows()))
	g.pointwise(opAdd, dnnFloat, 0, g.perRow(idLSE), top, g.float(opLog, sum))
	p := g.pointwise(opDiv, dnnFloat, 0, g.virtual(dnnBF16, g.scores()), e, sum)
	g.matmul(p, v, g.queries(idO))
}

// backward computes the scores again. dq is summed in a float accumulator by many blocks at once, whose order varies,
// or, deterministic, by one product at its end.
func (g *attnGraph) backward(scale float32, deterministic bool) {
	q, kT, vT := g.queries(idQ), g.transposed(idK), g.transposed(idV)
	o, do := g.queries(idO), g.queries(idDO)
	factor := g.scalar(scale)
	perQuery := dims{g.b, g.hq, g.sq, g.d}
	t := g.tensor(dnnFloat, perQuery, dims{g.hq * g.sq * g.d, g.sq * g.d, g.hq * g.d, 1}, 0, false)
	g.pointwise(opMul, dnnFloat, 0, t, do, o)
	sum := g.reduce(reduceSum, t, g.virtual(dnnFloat, g.rows()))
	delta := g.pointwise(opMul, dnnFloat, 0, g.perRow(idDelta), sum, g.scalar(1))
	// p = exp(scale·q·kᵀ - lse)
	s := g.virtual(dnnFloat, g.scores())
	g.matmul(q, kT, s)
	s = g.float(opSub, g.float(opMul, s, factor), g.perRow(idLSE))
	p := g.float(opExp, g.causal(s))
	// dv = pᵀ·do
	g.perGroup(g.flipped(p), do, g.heads(g.hk, g.sk, g.hk*g.d+g.gap, idDV))
	// ds = p·(do·vᵀ - delta)·scale, dk = dsᵀ·q
	dp := g.virtual(dnnFloat, g.scores())
	g.matmul(do, vT, dp)
	ds := g.float(opMul, g.float(opMul, g.float(opSub, dp, delta), p), factor)
	g.perGroup(g.flipped(ds), q, g.keys(idDK))
	// dq = ds·k
	k := g.reshape(kT, g.tensor(dnnFloat, dims{g.b, g.hk, g.sk, g.d}, dims{g.sk * g.hk * g.d, g.d, g.hk * g.d, 1}, 0, false))
	dq := g.queries(idDQ)
	if deterministic {
		g.matmul(ds, k, dq)
		return
	}
	acc := g.tensor(dnnFloat, perQuery, perQuery.dense(), idSumDQ, false)
	g.matmul(ds, k, acc)
	g.pointwise(opIdentity, dnnFloat, 0, dq, acc)
}

// flipped are scores in bfloat16 with rows and columns exchanged.
func (g *attnGraph) flipped(scores dnnTensor) dnnTensor {
	return g.reshape(scores, g.tensor(dnnBF16, dims{g.b, g.hq, g.sk, g.sq}, dims{g.hq * g.sq * g.sk, g.sq * g.sk, 1, g.sk}, 0, false))
}

// perGroup multiplies and, with fewer key heads than query heads, adds the heads of each group.
func (g *attnGraph) perGroup(x, y, out dnnTensor) {
	if g.hq == g.hk {
		g.matmul(x, y, out)
		return
	}
	all := g.virtual(dnnBF16, dims{g.b, g.hq, g.sk, g.d})
	g.matmul(x, y, all)
	g.reduce(reduceSum, all, out)
}
