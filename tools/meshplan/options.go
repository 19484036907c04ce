package main

import (
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"titan/libtitan/dtype"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
	"titan/libtitan/mesh"
	"titan/libtitan/model/llama3"
	"titan/libtitan/pipeline"
	"titan/tools/internal/app"
)

// options are the command line. What is not given is taken from the model's preset.
type options struct {
	model        string
	config       manifest.ModelConfig // dimensions given; 0: not given
	tied, untied bool

	worldSize int
	dims      manifest.MeshDims

	batch        manifest.Training
	dtype        string
	optimizer    manifest.Optimizer
	warmupSteps  int
	schedule     string
	microbatches int
	ac           string
	compile      bool
	float8       string
	asyncTP      bool

	machine machine
	top     int
	format  string

	given func(flag string) bool
}

func defaults() *options {
	return &options{
		model: "debugmodel",
		dims:  manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: -1, CP: 1, TP: 1, EP: 1},
		batch: manifest.Training{Seed: 42, DType: "float32", MixedPrecisionReduce: "float32", MaxNorm: 1},
		dtype: "float32",
		// torchtitan's defaults
		optimizer: manifest.Optimizer{Name: "AdamW", Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1},
		schedule:  "1F1B",
		ac:        "none",
		float8:    "off",
		machine:   machine{gpu: "h100"},
		top:       1,
		format:    "manifest",
	}
}

func (o *options) flags() []cli.Flag {
	c, d, b := &o.config, &o.dims, &o.batch
	return append(o.machine.flags(), []cli.Flag{
		app.Count(&o.top, "search for the `N` best meshes, each with its best batch, activation checkpointing and schedule", "top"),
		app.Choice(&o.format, []string{"manifest", "plans"}, "write the best plan's manifest, or a JSON list of the --top best with their estimates", "format"),
		app.Model(&o.model, "a name from meshplan models, a config.json `FILE`, or llama3 with every dimension", "model", "m"),
		app.Count(&o.worldSize, "ranks (default: the product of the degrees)", "world-size", "world"),
		app.Count(&d.PP, "pipeline-parallel degree", "pp"),
		app.Count(&d.DPReplicate, "data-parallel replicas", "dp-replicate"),
		app.Count(&d.DPShard, "data-parallel shards (FSDP); -1: all ranks that are left", "dp-shard"),
		app.Count(&d.CP, "context-parallel degree", "cp"),
		app.Count(&d.TP, "tensor-parallel degree", "tp"),
		app.ActivationCheckpoint(&o.ac),
		app.Switch(&o.compile, "fuse the model's and the loss's elementwise work", "compile"),
		app.Choice(&o.float8, []string{"off", "tensorwise", "rowwise", "rowwise_with_gw_hp"}, "recipe of the linears but lm_head", "float8"),
		app.Switch(&o.asyncTP, "plan tensor-parallel collectives in pieces beside the products (not run yet)", "async-tp"),
		app.Count(&d.EP, "expert-parallel degree, out of dp-shard, cp and tp", "ep"),
		app.Count(&c.NumExperts, "experts of each feed-forward network", "experts"),
		app.Count(&b.SeqLen, "tokens a row", "seq-len"),
		app.Count(&b.LocalBatchSize, "rows of a data-parallel rank in one forward and backward", "local-batch-size"),
		app.Count(&b.GlobalBatchSize, "rows of an optimizer step (default: local times data-parallel ranks)", "global-batch-size"),
		app.Choice(&o.schedule, pipeline.Names(), "pipeline schedule", "schedule"),
		app.Count(&o.microbatches, "microbatches of a local batch (default: one a row)", "microbatches"),
		app.Count(&b.Steps, "optimizer steps", "steps"),
		app.Count(&b.Seed, "seed of weights and data order", "seed"),
		app.Number(&o.optimizer.LR, "peak learning rate", "lr"),
		app.Count(&o.warmupSteps, "steps in which the learning rate rises", "warmup-steps"),
		app.Number(&o.optimizer.WeightDecay, "decoupled weight decay", "weight-decay"),
		app.Number(&b.MaxNorm, "norm that gradients are clipped to", "max-norm"),
		app.Named(&o.dtype, []string{"float32", "bfloat16"}, "`TYPE` computed in: float32 or bfloat16", "dtype"),
		app.Count(&c.Dim, "channels of the residual stream", "dim"),
		app.Count(&c.NumLayers, "layers", "layers"),
		app.Count(&c.NumHeads, "query heads", "heads"),
		app.Count(&c.NumKVHeads, "key-value heads", "kv-heads"),
		app.Count(&c.HeadDim, "channels of a head (default: dim over heads)", "head-dim"),
		app.Count(&c.FFNHidden, "hidden channels of the feed-forward network", "ffn"),
		app.Count(&c.VocabSize, "size of the vocabulary", "vocab"),
		app.Switch(&o.tied, "share the embedding's weight with the head", "tied"),
		app.Switch(&o.untied, "give the head a weight of its own", "untied"),
	}...)
}

// fill makes a job of o.
func (o *options) fill(m *manifest.Manifest) error {
	p, err := o.preset()
	if err != nil {
		return err
	}
	if o.tied && o.untied {
		return exit.Usage.Errorf("--tied and --untied exclude each other")
	}
	m.Model = &manifest.Model{Family: "llama3", Flavor: p.Name, Config: p.Config}
	if o.override(&m.Model.Config, p.FFN) {
		m.Model.Flavor = "custom"
	}
	m.Mesh = o.mesh()
	m.Training = &o.batch
	m.Pipeline = o.train(p, m.Training, m.Mesh.Dims)
	if err := o.precision(m.Training); err != nil {
		return err
	}
	m.Optimizer = &o.optimizer
	if !o.given("lr") {
		m.Optimizer.LR = p.LR
	}
	m.LRScheduler = &manifest.LRScheduler{WarmupSteps: o.or("warmup-steps", o.warmupSteps, p.WarmupSteps), DecayType: "linear"}
	if p.DecayRatio > 0 {
		m.LRScheduler.DecayRatio = &p.DecayRatio
	}
	ac, err := manifest.ParseActivationCheckpoint(o.ac)
	if err != nil {
		return exit.Usage.Errorf("--ac: %w", err)
	}
	m.ActivationCheckpoint = ac
	m.Compile = &manifest.Compile{Enable: o.compile, Components: []string{"model", "loss"}}
	m.Float8 = manifest.NewFloat8(o.float8)
	m.Derive()
	return nil
}

// or is value where flag is given, else preset.
func (o *options) or(flag string, value, preset int) int {
	if o.given(flag) {
		return value
	}
	return preset
}

// preset finds the model and how it is usually trained.
func (o *options) preset() (llama3.Preset, error) {
	if strings.EqualFold(o.model, "llama3") {
		p, err := llama3.Find("debugmodel") // trained as this small one
		p.Name, p.Config, p.FFN = "custom", llama3.Standard(), llama3.FFNRule{Multiplier: 1, MultipleOf: 256}
		for _, flag := range []string{"dim", "layers", "heads", "vocab"} {
			if !o.given(flag) {
				return p, exit.Usage.Errorf("--model llama3 needs --%s: give --dim, --layers, --heads, --vocab, and if they differ --kv-heads, --ffn", flag)
			}
		}
		return p, err
	}
	if !strings.HasSuffix(o.model, ".json") && !strings.ContainsRune(o.model, os.PathSeparator) {
		return llama3.Find(o.model)
	}
	p, err := llama3.Find("llama3-8b") // trained as this one
	if err != nil {
		return p, err
	}
	f, err := os.Open(o.model)
	if err != nil {
		return p, err
	}
	defer f.Close()
	p.Name, p.FFN = "custom", llama3.FFNRule{}
	if p.Config, err = llama3.ReadHuggingFace(f); err != nil {
		return p, exit.Input.Errorf("%s: %w", o.model, err)
	}
	p.SeqLen = min(p.SeqLen, p.Config.MaxSeqLen)
	return p, nil
}

// override puts the given dimensions into c and reports whether there were any. A new dim brings a new head_dim
// and, where the model has a rule for it, a new ffn.
func (o *options) override(c *manifest.ModelConfig, rule llama3.FFNRule) (changed bool) {
	for _, f := range []struct {
		flag  string
		dst   *int
		value int
	}{
		{"dim", &c.Dim, o.config.Dim}, {"layers", &c.NumLayers, o.config.NumLayers}, {"heads", &c.NumHeads, o.config.NumHeads},
		{"kv-heads", &c.NumKVHeads, o.config.NumKVHeads}, {"head-dim", &c.HeadDim, o.config.HeadDim}, {"ffn", &c.FFNHidden, o.config.FFNHidden},
		{"vocab", &c.VocabSize, o.config.VocabSize}, {"experts", &c.NumExperts, o.config.NumExperts},
	} {
		if o.given(f.flag) {
			*f.dst, changed = f.value, true
		}
	}
	if o.given("heads") && !o.given("kv-heads") && c.NumKVHeads == 0 {
		c.NumKVHeads = c.NumHeads
	}
	if (o.given("dim") || o.given("heads")) && !o.given("head-dim") && c.NumHeads > 0 {
		c.HeadDim = c.Dim / c.NumHeads
	}
	if o.given("dim") && !o.given("ffn") && rule.MultipleOf > 0 && c.Dim > 0 && c.Dim <= 1<<20 {
		c.FFNHidden = rule.Hidden(c.Dim)
	}
	if o.tied != o.untied && c.Tied != o.tied {
		c.Tied, changed = o.tied, true
	}
	return changed
}

// mesh settles the degrees: dp_shard takes the ranks that the others leave, and a world that is not given is as
// large as the degrees need.
func (o *options) mesh() *manifest.Mesh {
	d := o.dims
	rest := max(1, d.PP*d.DPReplicate*d.CP*d.TP)
	if d.DPShard == -1 {
		d.DPShard = 1
		if o.worldSize > 0 {
			d.DPShard = max(1, o.worldSize/rest)
		} else if d.EP > 1 {
			d.DPShard = (d.EP + d.CP*d.TP - 1) / max(1, d.CP*d.TP)
		}
	}
	world := o.worldSize
	if !o.given("world-size") {
		world = rest * max(1, d.DPShard)
	}
	return &manifest.Mesh{WorldSize: world, Dims: d, Order: mesh.Order()}
}

// train settles rows and steps, and the pipeline where there is one.
func (o *options) train(p llama3.Preset, t *manifest.Training, d manifest.MeshDims) *manifest.Pipeline {
	t.SeqLen = o.or("seq-len", t.SeqLen, p.SeqLen)
	t.Steps = o.or("steps", t.Steps, p.Steps)
	local := p.LocalBatchSize
	if m := o.microbatches; m > 0 { // the preset's rows, rounded up to whole microbatches
		local = (local + m - 1) / m * m
	}
	t.LocalBatchSize = o.or("local-batch-size", t.LocalBatchSize, local)
	t.GlobalBatchSize = o.or("global-batch-size", t.GlobalBatchSize, t.LocalBatchSize*d.DPReplicate*d.DPShard)
	if d.PP == 1 && !o.given("schedule") && !o.given("microbatches") {
		return nil
	}
	return &manifest.Pipeline{Schedule: o.schedule, NumMicrobatches: o.or("microbatches", o.microbatches, t.LocalBatchSize)}
}

func (o *options) precision(t *manifest.Training) error {
	d, err := dtype.Parse(strings.ToLower(o.dtype))
	if err != nil {
		return exit.Usage.Errorf("--dtype: %w", err)
	}
	t.MixedPrecisionParam = d.String()
	return nil
}
