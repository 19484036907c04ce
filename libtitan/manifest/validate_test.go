package manifest

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/pipeline"
)

func TestValidateAccepts(t *testing.T) {
	for _, sets := range [][]string{
		nil,
		{"optimizer.lr=0", "lr_scheduler.decay_ratio=1", "lr_scheduler.min_lr_factor=1"},
		{"training.seed=0", "training.mixed_precision_param=bfloat16"},
		{"mesh.order=tp,cp,pp,dp_shard,dp_replicate"},
		{"activation_checkpoint.mode=selective", "activation_checkpoint.option=op"},
		{"activation_checkpoint.mode=selective", "activation_checkpoint.option=2"},
		{"compile.components=model", "float8.recipe=rowwise"},
		{"model.config.num_experts=8", "pipeline=null"},
		{"model.config.num_experts=8", "pipeline=null", "mesh.dims.pp=1", "mesh.dims.dp_shard=2", "mesh.dims.ep=2", "training.global_batch_size=16"},
		{"checkpoint.last_save_model_only=true", "checkpoint.last_save_in_hf=true", "checkpoint.export_dtype=float16", "checkpoint.keep_latest_k=2"},
		{"checkpoint.exclude_from_loading=optimizer,lr_scheduler", "checkpoint.async_mode=async", "checkpoint.initial_load_path=hf", "checkpoint.initial_load_in_hf=true"},
		{"pipeline.num_microbatches=1"}, // cases 4: fewer than stages
		{"mesh.dims.tp=2", "mesh.dims.pp=1", "model.config.vocab_size=259", "model.config.ffn_hidden=33", "pipeline=null"}, // cases 2: uneven vocab
	} {
		m := sample()
		require.NoError(t, Set(m, sets...))
		require.NoError(t, Validate(m), "%v", sets)
	}
}

// staged is sample with four stages on its two ranks.
func staged(schedule string, rankOf ...int) *Manifest {
	m := sample()
	m.Pipeline.Schedule, m.Pipeline.NumMicrobatches, m.Pipeline.Stages = schedule, 4, nil
	for i, fqns := range [][]string{{"tok_embeddings", "layers.0"}, {"layers.1", "layers.2"}, {"layers.3", "layers.4"}, {"layers.5", "norm", "lm_head"}} {
		m.Pipeline.Stages = append(m.Pipeline.Stages, Stage{Stage: i, PPRank: rankOf[i], FQNs: fqns})
	}
	m.Derive()
	return m
}

func TestValidateSchedules(t *testing.T) {
	loop, v := []int{0, 1, 0, 1}, []int{0, 1, 1, 0}
	for name, rankOf := range map[string][]int{"Interleaved1F1B": loop, "LoopedBFS": loop, "InterleavedZeroBubble": loop, "ZBVZeroBubble": v, "DualPipeV": v} {
		m := staged(name, rankOf...)
		require.NoError(t, Validate(m), name)
		s, err := m.Schedule()
		require.NoError(t, err)
		require.Equal(t, rankOf, s.StageRank)
		require.NoError(t, pipeline.Check(s))
		m.Pipeline.Stages[2].PPRank, m.Pipeline.Stages[3].PPRank = rankOf[3], rankOf[2]
		require.ErrorContains(t, Validate(m), "pipeline.stages.2.pp_rank is "+strconv.Itoa(rankOf[3])+": schedule "+name+" runs stage 2 on rank "+strconv.Itoa(rankOf[2]))
	}
	require.EqualError(t, Validate(staged("1F1B", loop...)), "manifest: pipeline: schedule 1F1B: 2 stages a rank: it runs exactly 1")
	m := staged("DualPipeV", v...)
	m.Pipeline.NumMicrobatches = 2
	require.EqualError(t, Validate(m), "manifest: pipeline: schedule DualPipeV: 2 microbatches are fewer than its 4 stages: use at least 4")
	m.Pipeline.Stages = nil
	require.ErrorContains(t, Validate(m), "use at least 4", "before pp-split, too")
	m = staged("LoopedBFS", loop...)
	m.Pipeline.Stages = m.Pipeline.Stages[:3]
	require.ErrorContains(t, Validate(m), "pipeline.stages: 3 stages do not divide among mesh.dims.pp 2 ranks: run pp-split again")
}

func TestValidateCSV(t *testing.T) {
	s, err := pipeline.Build("ZBVZeroBubble", 2, 2, 4)
	require.NoError(t, err)
	m := staged("CSV", s.StageRank...)
	for _, actions := range s.Ranks {
		m.Pipeline.Actions = append(m.Pipeline.Actions, strings.Join(pipeline.Cells(actions), ","))
	}
	require.NoError(t, Validate(m))
	got, err := m.Schedule()
	require.NoError(t, err)
	require.Equal(t, s.Ranks, got.Ranks)
	for name, c := range map[string]struct {
		change func(m *Manifest)
		want   string
	}{
		"name":         {func(m *Manifest) { m.Pipeline.Schedule = "ZBVZeroBubble" }, "pipeline.actions: schedule ZBVZeroBubble has its own: set pipeline.schedule to CSV, or leave them out"},
		"none":         {func(m *Manifest) { m.Pipeline.Actions = nil }, "pipeline: schedule CSV: rank 0 has no actions: each row is a pipeline rank with stages of its own"},
		"microbatches": {func(m *Manifest) { m.Pipeline.NumMicrobatches = 2 }, "pipeline: schedule CSV: it has 4 microbatches, but pipeline.num_microbatches is 2"},
		"action":       {func(m *Manifest) { m.Pipeline.Actions[1] = "1F0," + m.Pipeline.Actions[1] }, "pipeline: schedule CSV: rank 1, column 1: 1F0: done before, in column 0"},
		"ranks":        {func(m *Manifest) { m.Mesh.Dims.PP, m.Mesh.WorldSize = 4, 4 }, "pipeline: schedule CSV: it has 2 ranks, but mesh.dims.pp is 4"},
		"stages":       {func(m *Manifest) { m.Pipeline.Stages = m.Pipeline.Stages[:2] }, "pipeline.stages: 2 stages, but schedule CSV has 4: run pp-split again"},
	} {
		bad := *m
		pipe := *m.Pipeline
		pipe.Actions = slices.Clone(pipe.Actions)
		mesh := *m.Mesh
		bad.Pipeline, bad.Mesh = &pipe, &mesh
		c.change(&bad)
		require.EqualError(t, Validate(&bad), "manifest: "+c.want, name)
	}
}

func TestValidateRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		sets []string
		want string
	}{
		{"missing section", []string{"optimizer=null"}, "section optimizer is missing: meshplan writes it"},
		{"degree", []string{"mesh.dims.tp=0"}, "mesh.dims.tp is 0: it must be at least 1"},
		{"world", []string{"mesh.world_size=4"}, "mesh.dims: pp(2) * dp_replicate(1) * dp_shard(1) * cp(1) * tp(1) = 2, but mesh.world_size is 4"},
		{"vast degrees", []string{"mesh.dims.dp_shard=1048576", "mesh.dims.dp_replicate=1048576", "training.local_batch_size=16777216"},
			"mesh.dims: pp(2) * dp_replicate(1048576) * dp_shard(1048576) * cp(1) * tp(1) = 2199023255552, but mesh.world_size is 2"},
		{"order", []string{"mesh.order=pp,pp,tp,cp,dp_shard"}, "mesh.order: want each of pp, dp_replicate, dp_shard, cp, tp once"},
		{"order word", []string{"mesh.order=pp,ep"}, `mesh.order: "ep" is not among pp, dp_replicate, dp_shard, cp, tp`},
		{"kv heads", []string{"model.config.num_kv_heads=2", "mesh.dims.pp=1", "mesh.dims.tp=4", "mesh.world_size=4", "pipeline=null"},
			"model.config.num_kv_heads 2 is not divisible by mesh.dims.tp 4 (tp may be 1, 2)"},
		{"heads, rows and world", []string{"mesh.dims.tp=3", "mesh.dims.pp=1", "pipeline=null"}, "model.config.num_heads 16 is not divisible by mesh.dims.tp 3 (tp may be 1, 2, 4, 8, 16)"},
		{"heads per kv head", []string{"model.config.num_kv_heads=5"}, "model.config.num_heads 16 is not divisible by model.config.num_kv_heads 5"},
		{"odd head", []string{"model.config.head_dim=3"}, "model.config.head_dim 3 is odd: rotary embeddings turn pairs of channels"},
		{"seq over tp", []string{"training.seq_len=65", "mesh.dims.pp=1", "mesh.dims.tp=2", "pipeline=null"}, "training.seq_len 65 is not divisible by mesh.dims.tp 2 (nearest: 64, 66)"},
		{"seq over cp", []string{"training.seq_len=66", "mesh.dims.pp=1", "mesh.dims.cp=2", "pipeline=null"}, "training.seq_len 66 is not divisible by tp*2*cp = 4 (mesh.dims.tp 1, cp 2) (nearest: 64, 68)"},
		{"seq over model", []string{"training.seq_len=131073"}, "training.seq_len 131073 is above model.config.max_seq_len 131072"},
		{"batch", []string{"training.global_batch_size=12"}, "training.global_batch_size 12 is not divisible by local_batch_size 8 * 1 data-parallel ranks = 8 (nearest: 8, 16; or local_batch_size 12)"},
		{"global batch too small", []string{"training.local_batch_size=16"}, "training.global_batch_size 8 is not divisible by local_batch_size 16 * 1 data-parallel ranks = 16 (nearest: 16; or local_batch_size 8)"},
		{"accumulation", []string{"training.grad_accum_steps=2"}, "training.grad_accum_steps is 2, but global_batch_size 8 / (local_batch_size 8 * 1 data-parallel ranks) = 1"},
		{"microbatches", []string{"pipeline.num_microbatches=3"}, "pipeline.num_microbatches 3 does not divide training.local_batch_size 8 (it may be 1, 2, 4, 8)"},
		{"dtype", []string{"training.mixed_precision_param=float16"}, `training.mixed_precision_param: "float16" is not among float32, bfloat16`},
		{"schedule", []string{"pipeline.schedule=2F2B"}, `pipeline.schedule: "2F2B" is not among GPipe, 1F1B, Interleaved1F1B, LoopedBFS, InterleavedZeroBubble, ZBVZeroBubble, DualPipeV, CSV`},
		{"lr", []string{"optimizer.lr=-1"}, "optimizer.lr is -1: it must be at least 0"},
		{"beta", []string{"optimizer.beta2=1"}, "optimizer.beta2 is 1: it must be at most 0.9999999999999999"},
		{"norm", []string{"training.max_norm=0"}, "training.max_norm is 0: it must be above 0"},
		{"two at once", []string{"training.max_norm=0", "training.steps=0"}, "training.steps is 0: it must be at least 1; training.max_norm is 0: it must be above 0"},
		{"num_params", []string{"model.num_params=5"}, "model.num_params is 5, but model.config gives 6163712"},
		{"flops", []string{"model.flops_per_token=5"}, "model.flops_per_token is 5, but model.config at seq_len 2048 gives 71585280"},
		{"vast model", []string{"model.config.num_layers=16384", "model.config.dim=1048576", "model.config.ffn_hidden=16777216", "model.config.num_experts=65536", "pipeline=null"},
			"model.config: the model is too large to count"},
		{"ac option", []string{"activation_checkpoint.mode=selective", "activation_checkpoint.option=mm"}, `activation_checkpoint.option: "mm" is none of op, cheap and a number of layers`},
		{"ac mode", []string{"activation_checkpoint.mode=full", "activation_checkpoint.option=2"}, `activation_checkpoint.option: "2" has no meaning for mode full`},
		{"ep region", []string{"mesh.dims.ep=3", "model.config.num_experts=9", "mesh.world_size=8", "mesh.dims={\"pp\":1,\"dp_shard\":2,\"cp\":2,\"tp\":2}", "training.global_batch_size=16", "pipeline=null"},
			"mesh.dims.ep 3 does not divide dp_shard*cp*tp = 8, whose ranks it reuses (ep may be 1, 2, 4, 8)"},
		{"ep experts", []string{"mesh.dims.ep=4", "model.config.num_experts=6", "mesh.world_size=4", "mesh.dims={\"pp\":1,\"dp_shard\":4}", "training.global_batch_size=32", "pipeline=null"},
			"model.config.num_experts 6 is not divisible by mesh.dims.ep 4"},
		{"ep dense", []string{"mesh.dims.ep=4", "mesh.world_size=4", "mesh.dims={\"pp\":1,\"dp_shard\":4}", "training.global_batch_size=32", "pipeline=null"},
			"mesh.dims.ep 4 needs a model with experts, but model.config.num_experts is 0"},
		{"keep one", []string{"checkpoint.keep_latest_k=1"}, "checkpoint.keep_latest_k is 1: the one checkpoint would be the one that is being replaced: keep at least 2, or 0 for all"},
		{"optimizer in HF", []string{"checkpoint.last_save_in_hf=true"}, "checkpoint.last_save_in_hf needs checkpoint.last_save_model_only: Hugging Face's form has no place for an optimizer"},
		{"export of all", []string{"checkpoint.export_dtype=bfloat16"}, "checkpoint.export_dtype has no meaning without checkpoint.last_save_model_only: a state to go on from keeps its dtypes"},
		{"HF of nothing", []string{"checkpoint.initial_load_in_hf=true"}, "checkpoint.initial_load_in_hf has no meaning without checkpoint.initial_load_path"},
		{"folder is a stream", []string{"checkpoint.folder=-"}, "checkpoint.folder is -: a folder is wanted, which is no stream (./- if it is called so)"},
		{"weights are a stream", []string{"checkpoint.initial_load_path=-"}, "checkpoint.initial_load_path is -: a folder is wanted, which is no stream (./- if it is called so)"},
		{"model excluded", []string{"checkpoint.exclude_from_loading=model"}, `checkpoint.exclude_from_loading: "model" is not among optimizer, lr_scheduler, dataloader, train_state`},
		{"optimizer excluded alone", []string{"checkpoint.exclude_from_loading=optimizer"},
			"checkpoint.exclude_from_loading: optimizer without lr_scheduler: fresh moments need the warm-up again, so exclude both"},
		{"async", []string{"checkpoint.async_mode=thread"}, `checkpoint.async_mode: "thread" is not among disabled, async, async_with_pinned_mem`},
		{"stage count", []string{"mesh.dims.pp=4", "mesh.world_size=4"}, "pipeline.stages: 2 stages do not divide among mesh.dims.pp 4 ranks: run pp-split again"},
		{"stage lost a layer", []string{"pipeline.stages.0.fqns=tok_embeddings,layers.0,layers.2"}, "pipeline.stages: layers.1 is in no stage"},
		{"stage repeats a layer", []string{"pipeline.stages.1.fqns=layers.2,layers.3,layers.4,layers.5,norm,lm_head"}, "pipeline.stages: layers.2 is in stage 0 and again in stage 1"},
		{"stage cuts a layer", []string{"pipeline.stages.1.fqns=layers.3,layers.4.attention.wq,layers.5,norm,lm_head"},
			"pipeline.stages: stage 1: layers.4.attention.wq cuts inside layers.4: stages hold whole modules; layers.4 is in no stage"},
		{"stage rank", []string{"pipeline.stages.1.pp_rank=0"}, "pipeline.stages.1.pp_rank is 0: schedule 1F1B runs stage 1 on rank 1"},
		{"stage params", []string{"pipeline.stages.1.num_params=7"}, "pipeline.stages.1.num_params is 7, but its modules have 3081984"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := sample()
			require.NoError(t, Set(m, c.sets...))
			require.EqualError(t, Validate(m), "manifest: "+c.want)
		})
	}
}
