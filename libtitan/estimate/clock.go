package estimate

import "titan/libtitan/pipeline"

// clock tells how long jobs of one model take on one machine. What jobs share that differ in how ranks share out
// parameters, or in the order of the stages' work, it works out once.
type clock struct {
	m         *Machine
	units     map[unitKey]units
	loads     map[loadKey]*load
	runs      map[runKey]run
	schedules map[scheduleKey]*pipeline.Schedule
	moments   map[scheduleKey][][][]int // by pp rank, see pipeline.Held
}

type unitKey struct{ tp, cp, ep, rows int }

type scheduleKey struct {
	name             string
	pp, microbatches int
}

func newClock(m *Machine) *clock {
	return &clock{m, map[unitKey]units{}, map[loadKey]*load{}, map[runKey]run{}, map[scheduleKey]*pipeline.Schedule{}, map[scheduleKey][][][]int{}}
}

// maxKept is the largest schedule, in results that stages pass on, that a clock keeps.
const maxKept = 1 << 13

// schedule lays out j's.
func (c *clock) schedule(j *Job) (*pipeline.Schedule, error) {
	if j.custom != nil {
		return j.custom, nil
	}
	key := scheduleKey{j.Schedule, j.Dims.PP, j.NumMicrobatches}
	if s := c.schedules[key]; s != nil {
		return s, nil
	}
	s, err := pipeline.Build(key.name, key.pp, len(j.Stages)/key.pp, key.microbatches)
	if err == nil && len(j.Stages)*key.microbatches <= maxKept {
		c.schedules[key] = s
	}
	return s, err
}

// held is what a pipeline rank of j holds.
func (c *clock) held(j *Job, rank int) (held, error) {
	moments, err := c.momentsOf(j, rank)
	return j.hold(c.m, rank, moments), err
}

// momentsOf lists when a rank holds most. Other schedules of the rank are not laid out for it.
func (c *clock) momentsOf(j *Job, rank int) ([][]int, error) {
	if len(j.Stages) == 1 {
		return [][]int{{1}}, nil
	}
	var stages []int
	for i, s := range j.Stages {
		if s.Rank == rank {
			stages = append(stages, i)
		}
	}
	if j.custom != nil {
		return pipeline.Held(j.custom.Ranks[rank], stages), nil
	}
	key := scheduleKey{j.Schedule, j.Dims.PP, j.NumMicrobatches}
	known := c.moments[key]
	if known == nil {
		known = make([][][]int, j.Dims.PP)
		c.moments[key] = known
	}
	if known[rank] == nil {
		actions, err := pipeline.RankActions(j.Schedule, j.Dims.PP, len(stages), j.NumMicrobatches, rank)
		if err != nil {
			return nil, err
		}
		known[rank] = pipeline.Held(actions, stages)
	}
	return known[rank], nil
}

// work is what each kind of action costs, on one microbatch.
type work struct{ forward, inputGrad, weightGrad Parts }

func (w work) plus(v work) work {
	return work{w.forward.plus(v.forward), w.inputGrad.plus(v.inputGrad), w.weightGrad.plus(v.weightGrad)}
}

func (w work) times(n float64) work {
	return work{w.forward.times(n), w.inputGrad.times(n), w.weightGrad.times(n)}
}

// units are the parts of a model that cost time, and the sums of their parts.
type units struct {
	layer, embed, head    work
	layerS, embedS, headS seconds
	again                 [numAgain]Parts // what a layer's backward recomputes
	againS                [numAgain]float64
}

func (c *clock) unitsOf(j *Job) units {
	key := unitKey{j.Dims.TP, j.Dims.CP, j.Dims.EP, j.Rows}
	u, ok := c.units[key]
	if !ok {
		u = units{layer: j.layerWork(c.m), embed: j.embedWork(c.m), head: j.headWork(c.m)}
		u.again = j.againWork(c.m, u.layer.forward)
		u.layerS, u.embedS, u.headS = u.layer.seconds(), u.embed.seconds(), u.head.seconds()
		for what, parts := range u.again {
			u.againS[what] = parts.Sum()
		}
		c.units[key] = u
	}
	return u
}

func (j *Job) layerWork(m *Machine) work {
	all, _ := j.products()
	f8 := j.Float8 != "off"
	one := j.productTime(m, all, f8)
	attF, attB := j.attentionTime(m)
	memF, memB := j.elementwiseTime(m)
	castF, castB := j.float8Time(m)
	tp, ep := j.tpTime(m), j.epTime(m)
	cpF, cpB := j.cpTime(m)
	return work{
		forward:    Parts{Products: one, Attention: attF, MemoryBound: memF, Float8Casts: castF, TensorParallel: tp, ContextParallel: cpF, ExpertParallel: ep},
		inputGrad:  Parts{Products: one, Attention: attB, MemoryBound: memB, Float8Casts: castB, TensorParallel: tp, ContextParallel: cpB, ExpertParallel: ep},
		weightGrad: Parts{Products: j.productTime(m, all, f8 && j.Float8 != "rowwise_with_gw_hp")},
	}
}

// againWork is what a layer's backward recomputes, of a forward: under selective op a part of its products and its casts. What is
// cheap is read and written again.
func (j *Job) againWork(m *Machine, forward Parts) [numAgain]Parts {
	_, products := j.products()
	f8 := j.Float8 != "off"
	w := j.width()
	moved := 3 * w.ffn
	if j.Dims.TP == 1 {
		moved += 4 * w.stream
	}
	once := Parts{MemoryBound: m.elementwise(j.tokens()*j.computeBytes()*moved, j.Compute)}
	if f8 {
		once.Float8Casts = m.elementwise(j.tokens()*float8Cast*j.cheapInputs(), j.Compute)
	}
	return [numAgain]Parts{
		cheap: once,
		byOp: {Products: j.productTime(m, products, f8), MemoryBound: forward.MemoryBound, Float8Casts: forward.Float8Casts / 2,
			TensorParallel: forward.TensorParallel / 2, ExpertParallel: forward.ExpertParallel},
		whole: forward,
	}
}

// embedWork is a look-up: a row read and written for each token, twice that backward with a gradient that starts at zero.
func (j *Job) embedWork(m *Machine) work {
	rows := m.stream(j.tokens() * j.width().whole * 4)
	tp := j.tpTime(m) / 4
	return work{
		forward:    Parts{MemoryBound: rows, TensorParallel: tp},
		weightGrad: Parts{MemoryBound: 2*rows + m.stream(4*j.vocabParams()/j.tp()), TensorParallel: tp},
	}
}

// headWork is lm_head and the loss.
func (j *Job) headWork(m *Machine) work {
	product := j.productTime(m, []product{{j.width().whole, j.localVocab()}}, j.Float8Head)
	half := Parts{Products: product, MemoryBound: j.lossTime(m, j.tokens()*j.localVocab()) / 2, TensorParallel: j.tpTime(m) / 4}
	return work{forward: half, inputGrad: half, weightGrad: Parts{Products: product}}
}

// mix says how much of a model's units a stage is.
type mix struct {
	layers, remade float64 // all, and those recomputed
	again          again   // what of them
	embed, head    float64 // 1 or 0
	weights        float64 // whose whole gradients are added up in float32
}

func (j *Job) mix(s Stage) mix {
	what, n := j.recomputed(s)
	x := mix{layers: float64(s.Layers), remade: float64(n), again: what}
	if s.Embed {
		x.embed = 1
	}
	if s.Head {
		x.head = 1
	}
	if j.accumulates() {
		x.weights = j.stageParams(s)
	}
	return x
}

// of is the work of a stage on one microbatch, recomputation included.
func (u units) of(x mix, m *Machine) work {
	w := work{u.layer.forward.times(x.layers), u.layer.inputGrad.times(x.layers), u.layer.weightGrad.times(x.layers)}
	w.inputGrad = w.inputGrad.plus(u.again[x.again].times(x.remade))
	w.weightGrad.MemoryBound += accumulation(x, m)
	return w.plus(u.embed.times(x.embed)).plus(u.head.times(x.head))
}

// accumulation is the seconds of adding up whole gradients.
func accumulation(x mix, m *Machine) float64 { return m.stream(m.costs().accumulates * x.weights) }

// seconds is how long the actions of a stage last.
type seconds struct{ forward, inputGrad, weightGrad float64 }

func (s seconds) backward() float64 { return s.inputGrad + s.weightGrad }

// seconds is the sums of work.
func (w work) seconds() seconds {
	return seconds{w.forward.Sum(), w.inputGrad.Sum(), w.weightGrad.Sum()}
}

// stages is how long the actions of each stage last.
func (c *clock) stages(j *Job) []seconds {
	u := c.unitsOf(j)
	out := make([]seconds, len(j.Stages))
	for i, s := range j.Stages {
		x := j.mix(s)
		out[i] = seconds{
			forward:    x.layers*u.layerS.forward + x.embed*u.embedS.forward + x.head*u.headS.forward,
			inputGrad:  x.layers*u.layerS.inputGrad + x.remade*u.againS[x.again] + x.embed*u.embedS.inputGrad + x.head*u.headS.inputGrad,
			weightGrad: x.layers*u.layerS.weightGrad + x.embed*u.embedS.weightGrad + x.head*u.headS.weightGrad + accumulation(x, c.m),
		}
	}
	return out
}
