package manifest

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"titan/libtitan/mesh"
	"titan/libtitan/pipeline"
)

// limit is the range of a number.
type limit struct {
	path     string
	min, max float64
}

const huge = 1 << 24 // rows, tokens, steps apart, nothing in a manifest is larger

// limits are checked by Validate and shown in the schema. The upper ends keep products of dimensions in range.
var limits = []limit{
	{"model.config.dim", 1, 1 << 20},
	{"model.config.num_layers", 1, pipeline.MaxLayers},
	{"model.config.num_heads", 1, 1 << 16},
	{"model.config.num_kv_heads", 1, 1 << 16},
	{"model.config.head_dim", 2, 1 << 16},
	{"model.config.ffn_hidden", 1, huge},
	{"model.config.vocab_size", 1, huge},
	{"model.config.max_seq_len", 1, huge},
	{"model.config.norm_eps", 0, 1},
	{"model.config.rope_theta", 1, 1e12},
	{"model.config.rope_scaling.factor", 1, 1e6},
	{"model.config.rope_scaling.low_freq_factor", 1e-6, 1e6},
	{"model.config.rope_scaling.high_freq_factor", 1e-6, 1e6},
	{"model.config.rope_scaling.original_max_seq_len", 1, huge},
	{"model.config.num_experts", 0, 1 << 16},
	{"mesh.world_size", 1, 1 << 20},
	{"mesh.dims.pp", 1, 1 << 20},
	{"mesh.dims.dp_replicate", 1, 1 << 20},
	{"mesh.dims.dp_shard", 1, 1 << 20},
	{"mesh.dims.cp", 1, 1 << 20},
	{"mesh.dims.tp", 1, 1 << 20},
	{"mesh.dims.ep", 1, 1 << 20},
	{"training.seq_len", 1, huge},
	{"training.local_batch_size", 1, huge},
	{"training.global_batch_size", 1, huge},
	{"training.grad_accum_steps", 0, huge}, // the batch sizes say what it must be
	{"training.steps", 1, math.MaxInt32},
	{"training.max_norm", math.SmallestNonzeroFloat64, math.MaxFloat64},
	{"optimizer.lr", 0, 1e6},
	{"optimizer.beta1", 0, 1 - 0x1p-53},
	{"optimizer.beta2", 0, 1 - 0x1p-53},
	{"optimizer.eps", math.SmallestNonzeroFloat64, 1},
	{"optimizer.weight_decay", 0, 1e6},
	{"lr_scheduler.warmup_steps", 0, math.MaxInt32},
	{"lr_scheduler.total_steps", 1, math.MaxInt32},
	{"lr_scheduler.decay_ratio", 0, 1},
	{"lr_scheduler.min_lr_factor", 0, 1},
	{"pipeline.num_microbatches", 1, huge},
	{"pipeline.bubble", 0, 1},
	{"checkpoint.interval", 0, math.MaxInt32},
	{"checkpoint.load_step", -1, math.MaxInt32},
	{"checkpoint.keep_latest_k", 0, math.MaxInt32},
	{"data.validation_interval", 0, math.MaxInt32},
	{"data.validation_steps", 0, math.MaxInt32},
}

// choices are the words that a field, or each item of a list, may hold.
var choices = []struct {
	path  string
	words []string
}{
	{"model.family", []string{"llama3"}},
	{"mesh.order", mesh.Order()},
	{"mesh.cp_rotate", []string{"", "allgather", "ring"}},
	{"mesh.reshard_after_forward", []string{"", "default", "always", "never"}},
	{"training.dtype", []string{"float32"}},
	{"training.mixed_precision_param", []string{"float32", "bfloat16"}},
	{"training.mixed_precision_reduce", []string{"float32"}},
	{"optimizer.name", []string{"AdamW"}},
	{"lr_scheduler.decay_type", []string{"linear", "sqrt", "cosine"}},
	{"activation_checkpoint.mode", []string{"none", "full", "selective"}},
	{"compile.components", []string{"model", "loss"}},
	{"float8.recipe", []string{"off", "tensorwise", "rowwise", "rowwise_with_gw_hp"}},
	{"checkpoint.export_dtype", []string{"", "float32", "bfloat16", "float16"}},
	{"checkpoint.async_mode", []string{"", AsyncOff, AsyncThread, AsyncPinned}},
	{"checkpoint.exclude_from_loading", []string{"optimizer", "lr_scheduler", "dataloader", "train_state"}},
	{"pipeline.schedule", append(pipeline.Names(), pipeline.CSV)},
}

// required are the sections without which there is no job.
var required = []string{"model", "mesh", "training", "optimizer", "lr_scheduler"}

// Validate is the one validation, which every tool runs before it does anything: each value in its range, and
// the rules between them (torchtitan's ParallelDims, batch, head and stage rules). The error, an *Error, holds
// everything that is wrong; what a wrong value makes of the rules is left out.
func Validate(m *Manifest) error {
	var p problems
	if m.Schema != SchemaName {
		p.add("schema: want %q, got %.40q", SchemaName, m.Schema)
	}
	v := reflect.ValueOf(m).Elem()
	for _, name := range required {
		if section, _ := fieldNamed(v, name); section.IsNil() {
			p.add("section %s is missing: meshplan writes it", name)
		}
	}
	for _, l := range limits {
		p.limit(l, peek(v, l.path))
	}
	for _, c := range choices {
		p.choice(c.path, c.words, peek(v, c.path))
	}
	if p != nil {
		return p.err()
	}
	m.checkModel(&p)
	m.checkMesh(&p)
	m.checkBatch(&p)
	m.checkModes(&p)
	m.checkFloat8(&p)
	m.checkPipeline(&p)
	m.checkSaving(&p)
	return p.err()
}

// problems collects what is wrong, in words that start with a path.
type problems []string

func (p *problems) add(format string, args ...any) { *p = append(*p, fmt.Sprintf(format, args...)) }

func (p problems) err() error {
	if p == nil {
		return nil
	}
	return &Error{Why: strings.Join(p, "; ")}
}

// peek is the value at path below v, invalid where a section on the way is absent.
func peek(v reflect.Value, path string) reflect.Value {
	for _, name := range strings.Split(path, ".") {
		if v = reflect.Indirect(v); !v.IsValid() {
			return v
		}
		v, _ = fieldNamed(v, name)
	}
	return reflect.Indirect(v)
}

func (p *problems) limit(l limit, v reflect.Value) {
	if !v.IsValid() {
		return
	}
	var x float64
	if v.CanInt() {
		x = float64(v.Int())
	} else {
		x = v.Float()
	}
	switch {
	case x >= l.min && x <= l.max:
	case x < l.min && l.min == math.SmallestNonzeroFloat64:
		p.add("%s is %v: it must be above 0", l.path, v)
	case x < l.min:
		p.add("%s is %v: it must be at least %v", l.path, v, l.min)
	default:
		p.add("%s is %v: it must be at most %s", l.path, v, strconv.FormatFloat(l.max, 'g', -1, 64))
	}
}

func (p *problems) choice(path string, words []string, v reflect.Value) {
	if !v.IsValid() {
		return
	}
	got := []string{fmt.Sprint(v)}
	if v.Kind() == reflect.Slice {
		got = v.Interface().([]string)
	}
	for _, g := range got {
		if !slices.Contains(words, g) {
			named := slices.DeleteFunc(slices.Clone(words), func(w string) bool { return w == "" })
			p.add("%s: %.40q is not among %s", path, g, strings.Join(named, ", "))
		}
	}
}
