// Package manifest is the JSON document that the tools exchange: a model, the mesh it trains on, how it is
// cut into pipeline stages, and everything a run needs. A tool reads one with [Read], fills the sections it
// owns, and writes it with [Write]; sections that it does not own pass through byte for byte.
package manifest

// SchemaName is the value of the schema field.
const SchemaName = "titan.manifest/v1"

// Manifest is one job. A nil section is absent.
type Manifest struct {
	Schema               string                `json:"schema"` // the version of this format
	Model                *Model                `json:"model,omitempty"`
	Mesh                 *Mesh                 `json:"mesh,omitempty"`
	Training             *Training             `json:"training,omitempty"`
	Optimizer            *Optimizer            `json:"optimizer,omitempty"`
	LRScheduler          *LRScheduler          `json:"lr_scheduler,omitempty"`
	ActivationCheckpoint *ActivationCheckpoint `json:"activation_checkpoint,omitempty"`
	Compile              *Compile              `json:"compile,omitempty"`
	Float8               *Float8               `json:"float8,omitempty"`
	Estimate             *Estimate             `json:"estimate,omitempty"`
	Pipeline             *Pipeline             `json:"pipeline,omitempty"`
	Checkpoint           *Checkpoint           `json:"checkpoint,omitempty"`
	Data                 *Data                 `json:"data,omitempty"`

	read []section // the text of each section, for those that do not change
}

// Model is the architecture, every dimension explicit.
type Model struct {
	Family        string      `json:"family"` // the architecture: llama3
	Flavor        string      `json:"flavor"` // a preset's name, or "custom"
	Config        ModelConfig `json:"config"`
	NumParams     int64       `json:"num_params"`      // of the whole model, a tied head counted once
	FlopsPerToken int64       `json:"flops_per_token"` // at training.seq_len
}

// ModelConfig holds the dimensions of a decoder.
type ModelConfig struct {
	Dim         int          `json:"dim"`                                // channels of the residual stream
	NumLayers   int          `json:"num_layers"`                         // blocks of attention and feed-forward
	NumHeads    int          `json:"num_heads"`                          // query heads
	NumKVHeads  int          `json:"num_kv_heads"`                       // key-value heads, each shared by num_heads / num_kv_heads query heads
	HeadDim     int          `json:"head_dim"`                           // channels of a head
	FFNHidden   int          `json:"ffn_hidden"`                         // hidden channels of the feed-forward network
	VocabSize   int          `json:"vocab_size"`                         // rows of the embedding
	MaxSeqLen   int          `json:"max_seq_len"`                        // longest row, in tokens
	NormEps     float64      `json:"norm_eps"`                           // RMSNorm's epsilon
	RopeTheta   float64      `json:"rope_theta"`                         // base of the rotary frequencies
	RopeScaling *RopeScaling `json:"rope_scaling" jsonschema:"nullable"` // null: the frequencies are not stretched
	Tied        bool         `json:"tied"`                               // lm_head shares tok_embeddings' weight
	NumExperts  int          `json:"num_experts"`                        // experts of a feed-forward network; 0: a dense model
}

// RopeScaling is Llama 3.1's stretching of the rotary frequencies.
type RopeScaling struct {
	Factor         float64 `json:"factor"`               // by which low frequencies are divided
	LowFreqFactor  float64 `json:"low_freq_factor"`      // wavelengths above original_max_seq_len / this are divided
	HighFreqFactor float64 `json:"high_freq_factor"`     // wavelengths below original_max_seq_len / this stay
	OriginalMaxLen int     `json:"original_max_seq_len"` // rows that the frequencies were made for, in tokens
}

// Mesh is how the ranks are arranged.
type Mesh struct {
	WorldSize int      `json:"world_size"` // ranks: the product of dims without ep
	Dims      MeshDims `json:"dims"`
	Order     []string `json:"order"` // slowest axis first

	DisableSequenceParallel bool   `json:"disable_sequence_parallel,omitempty"` // under tp: keep the residual stream whole on every rank
	DisableLossParallel     bool   `json:"disable_loss_parallel,omitempty"`     // under tp: gather the logits before the loss
	CPRotate                string `json:"cp_rotate,omitempty"`                 // under cp: allgather (or absent), or ring: keys and values go round
	ReshardAfterForward     string `json:"reshard_after_forward,omitempty"`     // under dp_shard or cp: always, never, or default: layers, unless there is pp
}

// Keeps reports whether gathered parameters are kept for the whole step.
func (m *Mesh) Keeps() bool {
	switch m.ReshardAfterForward {
	case "always":
		return false
	case "never":
		return true
	}
	return m.Dims.PP > 1
}

// MeshDims holds the degree of every axis, each at least 1. ep reuses the ranks of dp_shard, cp and tp.
type MeshDims struct {
	PP          int `json:"pp"`           // pipeline ranks
	DPReplicate int `json:"dp_replicate"` // data-parallel replicas
	DPShard     int `json:"dp_shard"`     // data-parallel ranks that share out the parameters (FSDP)
	CP          int `json:"cp"`           // context-parallel ranks, which share out a row
	TP          int `json:"tp"`           // tensor-parallel ranks, which share out a layer
	EP          int `json:"ep"`           // expert-parallel ranks, out of those of dp_shard, cp and tp
}

// Training is what a step is.
type Training struct {
	SeqLen               int     `json:"seq_len"`                // tokens a row
	LocalBatchSize       int     `json:"local_batch_size"`       // rows a data-parallel rank takes in one forward and backward (all its microbatches)
	GlobalBatchSize      int     `json:"global_batch_size"`      // rows an optimizer step
	GradAccumSteps       int     `json:"grad_accum_steps"`       // global / (local x data-parallel ranks)
	Steps                int     `json:"steps"`                  // optimizer steps of the whole run
	Seed                 uint64  `json:"seed"`                   // of initial weights and the order of the data
	DType                string  `json:"dtype"`                  // of stored parameters: float32
	MixedPrecisionParam  string  `json:"mixed_precision_param"`  // of computation: float32 or bfloat16
	MixedPrecisionReduce string  `json:"mixed_precision_reduce"` // of gradient reduction: float32
	MaxNorm              float64 `json:"max_norm"`               // gradients are clipped to this global L2 norm
}

// Optimizer is the update rule.
type Optimizer struct {
	Name        string  `json:"name"`         // AdamW
	LR          float64 `json:"lr"`           // peak learning rate
	Beta1       float64 `json:"beta1"`        // decay of the mean of gradients
	Beta2       float64 `json:"beta2"`        // decay of the mean of squared gradients
	Eps         float64 `json:"eps"`          // added to the root of the mean square
	WeightDecay float64 `json:"weight_decay"` // decoupled, on every parameter
}

// LRScheduler scales the learning rate over a run: warm-up, flat, decay.
type LRScheduler struct {
	WarmupSteps int      `json:"warmup_steps"`                      // steps in which the rate rises to its peak
	TotalSteps  *int     `json:"total_steps" jsonschema:"nullable"` // null: training.steps
	DecayRatio  *float64 `json:"decay_ratio" jsonschema:"nullable"` // share of the total; null: all that warm-up leaves
	DecayType   string   `json:"decay_type"`                        // linear, sqrt or cosine
	MinLRFactor float64  `json:"min_lr_factor"`                     // where decay ends, as a share of the peak
}

// ActivationCheckpoint says what the backward recomputes.
type ActivationCheckpoint struct {
	Mode   string `json:"mode"`   // none, full or selective
	Option string `json:"option"` // for selective: op, cheap, or N for every N-th layer; else ""
}

// Compile says which components are fused.
type Compile struct {
	Enable     bool     `json:"enable"`     // whether elementwise chains are fused
	Components []string `json:"components"` // model, loss
}

// Float8 says which linears run in float8.
type Float8 struct {
	Recipe     string   `json:"recipe"`      // off, tensorwise, rowwise or rowwise_with_gw_hp
	FilterFQNs []string `json:"filter_fqns"` // linears whose FQN holds one of these stay in their type
}

// Estimate is what meshplan predicts of the job on one kind of GPU; a change of the other sections does not change it.
type Estimate struct {
	GPU                   string            `json:"gpu"`                       // the machine, by name
	PlanOnly              bool              `json:"plan_only"`                 // titan-run does not run the job yet
	Ranks                 []EstimateRank    `json:"ranks"`                     // by pp rank, what one of its GPUs holds
	PeakBytes             int64             `json:"peak_bytes"`                // the largest of the ranks'
	StepSeconds           float64           `json:"step_seconds"`              // of an optimizer step
	TokensPerSecondPerGPU float64           `json:"tokens_per_second_per_gpu"` // tokens of a step / step_seconds / world_size
	MFU                   float64           `json:"mfu"`                       // flops_per_token by this rate, of the GPU's bfloat16 peak
	Bubble                float64           `json:"bubble"`                    // share of the pipeline ranks' time in which they wait for each other
	Seconds               []EstimateSeconds `json:"seconds"`                   // where the step's time goes on the pipeline rank that works longest
	ComputedFrom          []string          `json:"computed_from"`             // what the figures follow from
}

// EstimateRank is the bytes of a GPU at its peak. Without allocated_bytes, they add up to peak_bytes.
type EstimateRank struct {
	PPRank             int   `json:"pp_rank"`             // the pipeline rank
	ParamsBytes        int64 `json:"params_bytes"`        // this GPU's share of the stored values
	GradsBytes         int64 `json:"grads_bytes"`         // their gradients, reduced
	OptimizerBytes     int64 `json:"optimizer_bytes"`     // AdamW's moments
	ActivationsBytes   int64 `json:"activations_bytes"`   // what forwards save for backwards, of all microbatches in flight
	LogitsBytes        int64 `json:"logits_bytes"`        // what the loss makes of them and back
	BuffersBytes       int64 `json:"buffers_bytes"`       // gathered parameters, gradients before they are reduced, messages, one block's workspace
	FragmentationBytes int64 `json:"fragmentation_bytes"` // what the allocator keeps and cannot use
	AllocatedBytes     int64 `json:"allocated_bytes"`     // most that is live at once
	PeakBytes          int64 `json:"peak_bytes"`          // reserved: what the GPU must have
}

// EstimateSeconds is one part of a step's time.
type EstimateSeconds struct {
	Part    string  `json:"part"`    // products, attention, memory_bound, ..., pipeline_waits
	Seconds float64 `json:"seconds"` // of a step
}

// Pipeline is the model cut into stages, and the order in which they run.
type Pipeline struct {
	Schedule        string   `json:"schedule"`          // the order of the ranks' work, by name; CSV: that of actions
	NumMicrobatches int      `json:"num_microbatches"`  // parts of a local batch, each passed through the stages by itself
	Actions         []string `json:"actions,omitempty"` // of schedule CSV: for each pp rank, its row of PyTorch's schedule CSV
	Stages          []Stage  `json:"stages,omitempty"`  // in the order of the model; absent before pp-split
	Bubble          float64  `json:"bubble,omitempty"`  // idle share of the ranks' time when each action takes one tick
}

// Stage is one part of the model: whole modules, named as the whole model names them.
type Stage struct {
	Stage     int      `json:"stage"`      // its number, from 0
	PPRank    int      `json:"pp_rank"`    // the pipeline rank that runs it
	FQNs      []string `json:"fqns"`       // its modules: tok_embeddings, layers.N, norm, lm_head
	NumParams int64    `json:"num_params"` // parameters it holds
}

// Checkpoint says where state is loaded from and saved to.
type Checkpoint struct {
	Folder          string `json:"folder,omitempty"`            // holds step-N folders; "" saves nothing
	InitialLoadPath string `json:"initial_load_path,omitempty"` // model weights for a run that has no checkpoint yet

	InitialLoadInHF    bool     `json:"initial_load_in_hf,omitempty"`           // initial_load_path must be of Hugging Face's form
	Interval           int      `json:"interval,omitempty"`                     // steps between saves; the last step always saves
	FirstStep          bool     `json:"enable_first_step_checkpoint,omitempty"` // save after step 1 too
	LastSaveModelOnly  bool     `json:"last_save_model_only,omitempty"`         // the last step's save is the model alone: no run goes on from it
	ExportDType        string   `json:"export_dtype,omitempty"`                 // of a last save that is the model alone: float32, bfloat16 or float16; absent: float32, or in Hugging Face's form that of an initial_load_path in it
	LastSaveInHF       bool     `json:"last_save_in_hf,omitempty"`              // the last save, of the model alone, has Hugging Face's form
	AsyncMode          string   `json:"async_mode,omitempty"`                   // disabled (or absent), async: saved beside the training from a copy, or async_with_pinned_mem
	LoadStep           *int     `json:"load_step,omitempty"`                    // absent or -1: the newest complete one
	LoadOnly           bool     `json:"load_only,omitempty"`                    // save nothing
	ExcludeFromLoading []string `json:"exclude_from_loading,omitempty"`         // what a resumed run begins afresh: optimizer, lr_scheduler, dataloader, train_state
	KeepLatestK        int      `json:"keep_latest_k,omitempty"`                // delete older steps but so many, at least 2; 0: none
}

// Data says what is learned.
type Data struct {
	Paths              []string `json:"paths,omitempty"`               // files, folders and globs
	Exclude            []string `json:"exclude,omitempty"`             // files, folders and globs left out of paths
	Sequential         bool     `json:"sequential,omitempty"`          // rows in the files' order, not shuffled
	Tokenizer          string   `json:"tokenizer,omitempty"`           // "byte" or a tokenizer.json
	ValidationPaths    []string `json:"validation_paths,omitempty"`    // files, folders and globs held out of training
	ValidationInterval int      `json:"validation_interval,omitempty"` // steps between validations; 0: none
	ValidationSteps    int      `json:"validation_steps,omitempty"`    // batches a validation reads
}
