package train

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/checkpoint"
	"titan/libtitan/dtype"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
)

// toHF converts a step as ckpt-shard convert --to hf does, in files of at most maxShard bytes.
func toHF(t *testing.T, m *manifest.Manifest, step string, maxShard int64, d dtype.DType) string {
	out := filepath.Join(t.TempDir(), "hf")
	o := checkpoint.ConvertOptions{To: checkpoint.HuggingFace, Model: &m.Model.Config, MaxShard: maxShard, DType: d}
	require.NoError(t, checkpoint.Convert(context.Background(), step, out, o))
	return out
}

// The last save in Hugging Face's form, from any layout, is what a conversion of the full save gives.
func TestLastSaveInHuggingFacesForm(t *testing.T) {
	data := numbers(t)
	one := manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1}
	for _, d := range []manifest.MeshDims{one, {PP: 2, DPReplicate: 1, DPShard: 2, CP: 1, TP: 2}} {
		save := func(c manifest.Checkpoint) (*manifest.Manifest, string) {
			m := meshJob(t, data, d, 2)
			m.Training.Steps = 2
			c.Folder = t.TempDir()
			m.Checkpoint = &c
			steps(t, m)
			return m, checkpoint.StepDir(c.Folder, 2)
		}
		m, full := save(manifest.Checkpoint{})
		for name, dt := range map[string]dtype.DType{"": dtype.Float32, "bfloat16": dtype.BFloat16} {
			hf, dir := save(manifest.Checkpoint{LastSaveModelOnly: true, LastSaveInHF: true, ExportDType: name})
			want := toHF(t, m, full, 0, dt)
			for _, file := range []string{"model.safetensors", "config.json"} {
				a, err := os.ReadFile(filepath.Join(want, file))
				require.NoError(t, err)
				b, err := os.ReadFile(filepath.Join(dir, file))
				require.NoError(t, err)
				require.True(t, bytes.Equal(a, b), "%s of %+v %s", file, d, name)
			}
			require.Len(t, stepFolders(t, dir), 2, "one file of tensors needs no index")
			require.NoError(t, Run(context.Background(), hf, quiet()), "nothing to do")
			_, err := Eval(context.Background(), hf, 1, quiet())
			require.NoError(t, err)
		}
	}
}

// A run begins from Hugging Face's weights, in several files with an index, on any layout, as from ours; its last save
// in their form keeps their dtype.
func TestInitialLoadFromHuggingFacesForm(t *testing.T) {
	data := numbers(t)
	folder := t.TempDir()
	first := meshJob(t, data, manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1}, 1)
	first.Training.Steps, first.Checkpoint = 2, &manifest.Checkpoint{Folder: folder}
	steps(t, first)
	step := checkpoint.StepDir(folder, 2)
	hf := toHF(t, first, step, 16<<10, dtype.Invalid)
	require.FileExists(t, filepath.Join(hf, "model.safetensors.index.json"))
	begin := func(c manifest.Checkpoint, d manifest.MeshDims) []record {
		m := meshJob(t, data, d, 2)
		m.Training.Steps, m.Checkpoint = 2, &c
		return steps(t, m)
	}
	for _, d := range []manifest.MeshDims{{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1}, {PP: 2, DPReplicate: 1, DPShard: 1, CP: 1, TP: 4}, {PP: 1, DPReplicate: 1, DPShard: 4, CP: 1, TP: 2}} {
		want := begin(manifest.Checkpoint{InitialLoadPath: step}, d)
		require.Equal(t, want, begin(manifest.Checkpoint{InitialLoadPath: hf}, d), "%+v", d)
		require.Equal(t, want, begin(manifest.Checkpoint{InitialLoadPath: hf, InitialLoadInHF: true}, d), "%+v", d)
	}

	c := manifest.Checkpoint{InitialLoadPath: toHF(t, first, step, 0, dtype.BFloat16), Folder: t.TempDir(), LastSaveModelOnly: true, LastSaveInHF: true}
	begin(c, manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1})
	require.Equal(t, dtype.BFloat16, checkpoint.FloatType(checkpoint.StepDir(c.Folder, 2)))
}

// What is not the manifest's model is refused, also where every shape fits.
func TestHuggingFacesModelMustBeTheManifests(t *testing.T) {
	data := numbers(t)
	folder := t.TempDir()
	m := savingJob(t, data, 1, manifest.Checkpoint{Folder: folder})
	steps(t, m)
	step := checkpoint.StepDir(folder, 1)
	hf := toHF(t, m, step, 0, dtype.Invalid)
	for want, edit := range map[string]func(c *manifest.ModelConfig){
		"rope_theta is 500000 there and 10000 in the manifest":                                                   func(c *manifest.ModelConfig) { c.RopeTheta = 10000 },
		"rope_scaling is {Factor:8 LowFreqFactor:1 HighFreqFactor:4 OriginalMaxLen:8192} there and <nil> in the": func(c *manifest.ModelConfig) { c.RopeScaling = nil },
		"num_heads is 4 there and 2 in the manifest; num_kv_heads is 2 there and 1 in the manifest; head_dim is": func(c *manifest.ModelConfig) {
			c.NumHeads, c.NumKVHeads, c.HeadDim = 2, 1, 32
		},
		"meshplan --model " + hf + "/config.json": func(c *manifest.ModelConfig) { c.NumLayers = 3 },
	} {
		m := savingJob(t, data, 1, manifest.Checkpoint{InitialLoadPath: hf})
		edit(&m.Model.Config)
		m.Derive()
		err := Run(context.Background(), m, quiet())
		require.ErrorContains(t, err, want)
		require.Equal(t, int(exit.Input), exit.Code(err))
	}
	err := Run(context.Background(), savingJob(t, data, 1, manifest.Checkpoint{InitialLoadPath: step, InitialLoadInHF: true}), quiet())
	require.ErrorContains(t, err, "it has not Hugging Face's form")
	require.NoError(t, os.Truncate(filepath.Join(hf, "model.safetensors"), 1000))
	require.ErrorContains(t, Run(context.Background(), savingJob(t, data, 1, manifest.Checkpoint{InitialLoadPath: hf}), quiet()), "model.safetensors")
}

// What is computed and not stored is there again after a way through Hugging Face's form, and when a stored table of an
// old checkpoint is passed over.
func TestEvaluationSurvivesConversions(t *testing.T) {
	m := savingJob(t, numbers(t), 10, manifest.Checkpoint{Folder: t.TempDir()})
	steps(t, m)
	step := checkpoint.StepDir(m.Checkpoint.Folder, 10)
	want, err := Eval(context.Background(), m, 3, quiet())
	require.NoError(t, err)
	hf, back, old := toHF(t, m, step, 0, dtype.Invalid), filepath.Join(t.TempDir(), "back"), filepath.Join(t.TempDir(), "old")
	require.NoError(t, checkpoint.Convert(context.Background(), hf, back, checkpoint.ConvertOptions{To: checkpoint.DCP}))
	copyStep(t, step, old, func(s *checkpoint.State) {
		table := []int64{32, 8}
		s.Tensors = append(s.Tensors, checkpoint.Tensor{FQN: "freqs_cis", DType: dtype.Complex64, Shape: table, Chunks: checkpoint.Whole(table, func([]byte, int64) error { return nil })})
	})
	for _, dir := range []string{hf, back, old} {
		m.Checkpoint = &manifest.Checkpoint{InitialLoadPath: dir}
		got, err := Eval(context.Background(), m, 3, quiet())
		require.NoError(t, err)
		require.Equal(t, want.Loss, got.Loss, dir)
	}
}
