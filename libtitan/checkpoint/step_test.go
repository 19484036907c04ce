package checkpoint

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
	"titan/libtitan/exit"
)

func runFolder(t *testing.T, complete, partial []string) string {
	dir := t.TempDir()
	for _, name := range append(complete, partial...) {
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o777))
	}
	for _, name := range complete {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name, ".metadata"), nil, 0o666))
	}
	return dir
}

func TestFindStep(t *testing.T) {
	dir := runFolder(t, []string{"step-9", "step-10", "step-30.tmp", "step-5-mybackup", "step-010", "xstep-40"}, []string{"step-20", "step-3"})
	s, err := FindStep(dir, Latest)
	require.NoError(t, err)
	require.Equal(t, Step{10, StepDir(dir, 10), []string{StepDir(dir, 20) + " is incomplete (no .metadata) and passed over"}}, s)

	s, err = FindStep(dir, 9)
	require.NoError(t, err)
	require.Equal(t, Step{Number: 9, Dir: StepDir(dir, 9)}, s)

	_, err = FindStep(dir, 15)
	require.EqualError(t, err, "checkpoint "+dir+": no step 15; there are steps 9, 10")
	require.Equal(t, int(exit.Input), exit.Code(err))
	_, err = FindStep(dir, 20)
	require.EqualError(t, err, "checkpoint "+StepDir(dir, 20)+": incomplete (no .metadata); there are steps 9, 10")
}

func TestNoStepAtAll(t *testing.T) {
	for dir, warnings := range map[string]int{t.TempDir(): 0, filepath.Join(t.TempDir(), "absent"): 0, runFolder(t, nil, []string{"step-4"}): 1} {
		s, err := FindStep(dir, Latest)
		require.ErrorIs(t, err, ErrNoStep)
		require.Len(t, s.Warnings, warnings)
		_, err = FindStep(dir, 4)
		require.ErrorContains(t, err, "no complete step is there")
	}
}

// reader makes a Reader of bare entries, as Resolve needs it.
func reader(items ...Item) *Reader { return &Reader{items: items, folder: folder{dir: "ck"}} }

func tensorItemOf(fqn string, shape ...int64) Item {
	return Item{FQN: fqn, Kind: KindTensor, DType: dtype.Float32, Shape: shape}
}

func wantOf(fqn string, shape ...int64) Want { return Want{fqn, dtype.Float32, shape} }

func TestResolveUnderstandsOtherNames(t *testing.T) {
	r := reader(
		tensorItemOf("_orig_mod.module.layers.0._checkpoint_wrapped_module.attention.wq.weight", 4, 4),
		tensorItemOf("layers.1.attention.qkv_linear.wq.weight", 4, 4),
		tensorItemOf("output._orig_mod.weight", 8, 4),
		tensorItemOf("module.scale", 1),
		tensorItemOf("module.module.shift", 1),
		tensorItemOf("optimizer.state.output.weight.exp_avg", 8, 4),
		tensorItemOf("freqs_cis", 64, 8),
		Item{FQN: "train_state.step", Kind: KindBytes},
	)
	stored, notes, err := Resolve(r, []Want{
		wantOf("layers.0.attention.wq.weight", 4, 4), wantOf("layers.1.attention.wq.weight", 4, 4), wantOf("lm_head.weight", 8, 4),
		wantOf("module.scale", 1), wantOf("module.shift", 1), wantOf("optimizer.state.lm_head.weight.exp_avg", 8, 4),
		{FQN: "train_state.step"},
	})
	require.NoError(t, err)
	require.Equal(t, map[string]string{
		"layers.0.attention.wq.weight":           "_orig_mod.module.layers.0._checkpoint_wrapped_module.attention.wq.weight",
		"layers.1.attention.wq.weight":           "layers.1.attention.qkv_linear.wq.weight",
		"lm_head.weight":                         "output._orig_mod.weight",
		"module.scale":                           "module.scale",
		"module.shift":                           "module.module.shift",
		"optimizer.state.lm_head.weight.exp_avg": "optimizer.state.output.weight.exp_avg",
		"train_state.step":                       "train_state.step",
	}, stored)
	require.Equal(t, []string{"freqs_cis is not read: the rotary table is computed"}, notes)
}

func TestResolveTellsOfWhatDoesNotFitAtOnce(t *testing.T) {
	r := reader(tensorItemOf("tok_embeddings.weight", 256, 64), tensorItemOf("output.weight", 256, 64), tensorItemOf("norm.weight", 64),
		Item{FQN: "count", Kind: KindTensor, DType: dtype.Int64}, tensorItemOf("same", 8, 4))
	_, _, err := Resolve(r, []Want{wantOf("tok_embeddings.weight", 259, 64), wantOf("lm_head.weight", 259, 64), wantOf("norm.weight", 64),
		wantOf("count"), wantOf("same", 4, 8), wantOf("layers.0.ffn_norm.weight", 64), {FQN: "norm.weight.lr"}})
	require.EqualError(t, err, "checkpoint ck: it does not fit the model: tok_embeddings.weight has shape [256 64], the model's [259 64]; "+
		"output.weight has shape [256 64], the model's [259 64]; count is int64, the model's float32 and 1 more; "+
		"missing: layers.0.ffn_norm.weight, norm.weight.lr")
	require.Equal(t, int(exit.Input), exit.Code(err))
}

func TestResolveRefusesNamesThatFallTogether(t *testing.T) {
	_, _, err := Resolve(reader(tensorItemOf("_orig_mod.w", 1), tensorItemOf("module.w", 1)), []Want{wantOf("w", 1)})
	require.EqualError(t, err, "checkpoint ck: it does not fit the model: _orig_mod.w and module.w are both w")
	_, _, err = Resolve(reader(tensorItemOf("lm_head.weight", 1), tensorItemOf("output.weight", 1)), []Want{wantOf("lm_head.weight", 1)})
	require.EqualError(t, err, "checkpoint ck: it does not fit the model: lm_head.weight and output.weight are both lm_head.weight")
}

func TestResolveWithNothingInCommon(t *testing.T) {
	_, _, err := Resolve(reader(tensorItemOf("a", 1), tensorItemOf("b", 1), tensorItemOf("c", 1), tensorItemOf("d", 1)), []Want{wantOf("x", 1), wantOf("y", 1)})
	require.EqualError(t, err, "checkpoint ck: none of the 2 names that the model wants is there: it wants x, y, the checkpoint has a, b, c and 1 more")
}

func TestResolveNotesNarrowing(t *testing.T) {
	_, notes, err := Resolve(reader(tensorItemOf("w", 1)), []Want{{"w", dtype.BFloat16, []int64{1}}})
	require.NoError(t, err)
	require.Equal(t, []string{"float32 is narrowed to bfloat16 in 1 tensors: w"}, notes)
	r := reader(Item{FQN: "w", Kind: KindTensor, DType: dtype.BFloat16, Shape: []int64{1}})
	_, notes, err = Resolve(r, []Want{wantOf("w", 1)})
	require.NoError(t, err)
	require.Empty(t, notes, "widening loses nothing")
}
