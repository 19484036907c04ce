package manifest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"titan/libtitan/mesh"
	"titan/libtitan/pipeline"
)

func (m *Manifest) checkModel(p *problems) {
	c := &m.Model.Config
	if c.HeadDim%2 != 0 {
		p.add("model.config.head_dim %d is odd: rotary embeddings turn pairs of channels", c.HeadDim)
	}
	if c.NumHeads%c.NumKVHeads != 0 {
		p.add("model.config.num_heads %d is not divisible by model.config.num_kv_heads %d", c.NumHeads, c.NumKVHeads)
	}
	if s := c.RopeScaling; s != nil && s.HighFreqFactor <= s.LowFreqFactor {
		p.add("model.config.rope_scaling.high_freq_factor %v must be above low_freq_factor %v", s.HighFreqFactor, s.LowFreqFactor)
	}
	if m.Training.SeqLen > c.MaxSeqLen {
		p.add("training.seq_len %d is above model.config.max_seq_len %d", m.Training.SeqLen, c.MaxSeqLen)
	}
	if !c.countable(m.Training.SeqLen) {
		p.add("model.config: the model is too large to count")
		return
	}
	if n := c.NumParams(); m.Model.NumParams != n {
		p.add("model.num_params is %d, but model.config gives %d", m.Model.NumParams, n)
	}
	if n := c.FlopsPerToken(m.Training.SeqLen); m.Model.FlopsPerToken != n {
		p.add("model.flops_per_token is %d, but model.config at seq_len %d gives %d", m.Model.FlopsPerToken, m.Training.SeqLen, n)
	}
}

func (m *Manifest) checkMesh(p *problems) {
	d := m.Mesh.Dims
	product := 1.0 // exact below 2^53, and never wraps
	var factors []string
	for i, degree := range []int{d.PP, d.DPReplicate, d.DPShard, d.CP, d.TP} {
		product *= float64(degree)
		factors = append(factors, fmt.Sprintf("%s(%d)", mesh.Order()[i], degree))
	}
	if m.checkHeads(p) && product != float64(m.Mesh.WorldSize) {
		p.add("mesh.dims: %s = %.0f, but mesh.world_size is %d", strings.Join(factors, " * "), product, m.Mesh.WorldSize)
	}
	order := slices.Clone(m.Mesh.Order)
	slices.Sort(order)
	if axes := mesh.Order(); len(order) != len(axes) || len(slices.Compact(order)) != len(axes) {
		p.add("mesh.order: want each of %s once", strings.Join(axes, ", "))
	}
	m.checkExperts(p)
}

// cutsHeads reports whether tp would cut a head. What else does not divide by such a tp is not worth a word.
func (m *Manifest) cutsHeads() bool {
	c, tp := &m.Model.Config, m.Mesh.Dims.TP
	return c.NumHeads%tp != 0 || c.NumKVHeads%tp != 0
}

// checkHeads reports whether tp leaves heads whole.
func (m *Manifest) checkHeads(p *problems) bool {
	if !m.cutsHeads() {
		return true
	}
	c, tp := &m.Model.Config, m.Mesh.Dims.TP
	name, n := "num_heads", c.NumHeads
	if n%tp == 0 {
		name, n = "num_kv_heads", c.NumKVHeads
	}
	p.add("model.config.%s %d is not divisible by mesh.dims.tp %d (tp may be %s)", name, n, tp, divisors(gcd(c.NumHeads, c.NumKVHeads)))
	return false
}

func (m *Manifest) checkExperts(p *problems) {
	d, experts := m.Mesh.Dims, m.Model.Config.NumExperts
	if d.EP == 1 {
		return
	}
	if region := d.DPShard * d.CP * d.TP; region%d.EP != 0 {
		p.add("mesh.dims.ep %d does not divide dp_shard*cp*tp = %d, whose ranks it reuses (ep may be %s)", d.EP, region, divisors(region))
	}
	switch {
	case experts == 0:
		p.add("mesh.dims.ep %d needs a model with experts, but model.config.num_experts is 0", d.EP)
	case experts%d.EP != 0:
		p.add("model.config.num_experts %d is not divisible by mesh.dims.ep %d", experts, d.EP)
	}
}

func (m *Manifest) checkBatch(p *problems) {
	t, d := m.Training, m.Mesh.Dims
	// Sequence parallelism cuts a row over tp; cp's load balancing cuts it in 2*cp pieces.
	pieces, why := d.TP, fmt.Sprintf("mesh.dims.tp %d", d.TP)
	switch {
	case m.Mesh.DisableSequenceParallel:
		pieces, why = 1, ""
		if d.CP > 1 {
			pieces, why = 2*d.CP, fmt.Sprintf("2*cp = %d (mesh.dims.cp %d)", 2*d.CP, d.CP)
		}
	case d.CP > 1:
		pieces, why = d.TP*2*d.CP, fmt.Sprintf("tp*2*cp = %d (mesh.dims.tp %d, cp %d)", d.TP*2*d.CP, d.TP, d.CP)
	}
	if t.SeqLen%pieces != 0 && !m.cutsHeads() {
		p.add("training.seq_len %d is not divisible by %s (nearest: %s)", t.SeqLen, why, NearestMultiples(t.SeqLen, pieces))
	}
	dp := d.DPReplicate * d.DPShard
	if dp > m.Mesh.WorldSize {
		return // checkMesh has said so
	}
	rows := t.LocalBatchSize * dp
	if t.GlobalBatchSize%rows != 0 {
		other := ""
		if t.GlobalBatchSize%dp == 0 {
			other = fmt.Sprintf("; or local_batch_size %d", t.GlobalBatchSize/dp)
		}
		p.add("training.global_batch_size %d is not divisible by local_batch_size %d * %d data-parallel ranks = %d (nearest: %s%s)",
			t.GlobalBatchSize, t.LocalBatchSize, dp, rows, NearestMultiples(t.GlobalBatchSize, rows), other)
	} else if accum := t.GlobalBatchSize / rows; t.GradAccumSteps != accum {
		p.add("training.grad_accum_steps is %d, but global_batch_size %d / (local_batch_size %d * %d data-parallel ranks) = %d",
			t.GradAccumSteps, t.GlobalBatchSize, t.LocalBatchSize, dp, accum)
	}
	if pipe := m.Pipeline; pipe != nil && t.LocalBatchSize%pipe.NumMicrobatches != 0 {
		p.add("pipeline.num_microbatches %d does not divide training.local_batch_size %d (it may be %s)", pipe.NumMicrobatches, t.LocalBatchSize, divisors(t.LocalBatchSize))
	}
}

func (m *Manifest) checkModes(p *problems) {
	ac := m.ActivationCheckpoint
	if ac == nil {
		return
	}
	_, err := strconv.ParseUint(ac.Option, 10, 16)
	switch {
	case ac.Mode == "selective" && ac.Option != "op" && ac.Option != "cheap" && err != nil:
		p.add("activation_checkpoint.option: %.40q is none of op, cheap and a number of layers", ac.Option)
	case ac.Mode != "selective" && ac.Option != "":
		p.add("activation_checkpoint.option: %.40q has no meaning for mode %s", ac.Option, ac.Mode)
	}
}

// Schedule lays out the pipeline section of a valid m: by name, or as its actions say. A rank runs as many stages
// as there are for it, and before pp-split the fewest that the schedule allows.
func (m *Manifest) Schedule() (*pipeline.Schedule, error) {
	pipe, pp := m.Pipeline, m.Mesh.Dims.PP
	if pipe.Schedule != pipeline.CSV {
		return pipeline.Build(pipe.Schedule, pp, len(pipe.Stages)/pp, pipe.NumMicrobatches)
	}
	s, err := pipeline.ReadCSV(strings.NewReader(strings.Join(pipe.Actions, "\n")))
	switch {
	case err != nil:
		return nil, err
	case len(s.Ranks) != pp:
		return nil, fmt.Errorf("schedule CSV: it has %d ranks, but mesh.dims.pp is %d", len(s.Ranks), pp)
	case s.NumMicrobatches != pipe.NumMicrobatches:
		return nil, fmt.Errorf("schedule CSV: it has %d microbatches, but pipeline.num_microbatches is %d", s.NumMicrobatches, pipe.NumMicrobatches)
	}
	return s, nil
}

// stageRanks is the pp rank of each stage, without the work of laying the schedule out where its name says it.
func (m *Manifest) stageRanks() ([]int, error) {
	pipe, pp := m.Pipeline, m.Mesh.Dims.PP
	if pipe.Schedule != pipeline.CSV {
		return pipeline.StageRank(pipe.Schedule, pp, len(pipe.Stages)/pp, pipe.NumMicrobatches)
	}
	s, err := m.Schedule()
	if err != nil {
		return nil, err
	}
	return s.StageRank, nil
}

func (m *Manifest) checkPipeline(p *problems) {
	pipe := m.Pipeline
	if pipe == nil {
		return
	}
	stages, pp := pipe.Stages, m.Mesh.Dims.PP
	if len(stages)%pp != 0 {
		p.add("pipeline.stages: %d stages do not divide among mesh.dims.pp %d ranks: run pp-split again", len(stages), pp)
		return
	}
	if pipe.Actions != nil && pipe.Schedule != pipeline.CSV {
		p.add("pipeline.actions: schedule %s has its own: set pipeline.schedule to %s, or leave them out", pipe.Schedule, pipeline.CSV)
	}
	rankOf, err := m.stageRanks()
	if err != nil {
		p.add("pipeline: %v", err)
		return
	}
	if stages != nil {
		m.checkStages(p, rankOf)
	}
}

// checkStages verifies that the stages are those of the schedule, by its map of stages to ranks, and of the model.
func (m *Manifest) checkStages(p *problems, rankOf []int) {
	stages := m.Pipeline.Stages
	if len(stages) != len(rankOf) {
		p.add("pipeline.stages: %d stages, but schedule %s has %d: run pp-split again", len(stages), m.Pipeline.Schedule, len(rankOf))
		return
	}
	fqns := make([][]string, len(stages))
	for i, s := range stages {
		fqns[i] = s.FQNs
		if s.Stage != i {
			p.add("pipeline.stages.%d.stage is %d: stages stand in order, from 0", i, s.Stage)
		}
		if want := rankOf[i]; s.PPRank != want {
			p.add("pipeline.stages.%d.pp_rank is %d: schedule %s runs stage %d on rank %d", i, s.PPRank, m.Pipeline.Schedule, i, want)
		}
	}
	if err := pipeline.CheckStages(fqns, m.Model.Config.NumLayers); err != nil {
		p.add("pipeline.stages: %v", err)
		return
	}
	for i, s := range stages {
		if n := m.Model.Config.StageParams(s.FQNs); s.NumParams != n {
			p.add("pipeline.stages.%d.num_params is %d, but its modules have %d", i, s.NumParams, n)
		}
	}
}

// NearestMultiples says which multiples of d lie about n: "16, 32", or "16" where n is below all.
func NearestMultiples(n, d int) string {
	below := n / d * d
	if below == 0 {
		return strconv.Itoa(d)
	}
	return fmt.Sprintf("%d, %d", below, below+d)
}

// divisors lists the divisors of n, the first and the last few of many.
func divisors(n int) string {
	var small, large []string
	for d := 1; d*d <= n; d++ {
		if n%d != 0 {
			continue
		}
		small = append(small, strconv.Itoa(d))
		if d*d != n {
			large = append(large, strconv.Itoa(n/d))
		}
	}
	slices.Reverse(large)
	all := append(small, large...)
	if len(all) > 16 {
		all = slices.Concat(all[:8], []string{"..."}, all[len(all)-8:])
	}
	return strings.Join(all, ", ")
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
