package train

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/checkpoint"
	"titan/libtitan/comm"
	"titan/libtitan/comm/local"
	"titan/libtitan/dtype"
	"titan/libtitan/manifest"
)

const referenceDir = "../../testdata/reference"

// reference is PyTorch's run of a tiny Llama, made in float64.
type reference struct {
	Float64 []struct {
		Step     int
		LR       float64
		Loss     float64
		GradNorm float64 `json:"grad_norm"`
	} `json:"float64"`
}

func readReference(t *testing.T) (r reference) {
	text, err := os.ReadFile(filepath.Join(referenceDir, "tiny_llama.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &r))
	return r
}

// readTensors reads a safetensors file as float32; our lm_head is its output.
func readTensors(t *testing.T, name string) map[string][]float32 {
	file, err := checkpoint.OpenSource(filepath.Join(referenceDir, name))
	require.NoError(t, err)
	defer file.Close()
	out := map[string][]float32{}
	for _, tensor := range file.Items() {
		data := make([]byte, tensor.Bytes)
		require.NoError(t, file.ReadRegion(tensor.FQN, make([]int64, len(tensor.Shape)), tensor.Shape, data))
		var x []float32
		switch tensor.DType {
		case dtype.BFloat16:
			for ; len(data) > 0; data = data[2:] {
				x = append(x, dtype.F32(binary.LittleEndian.Uint16(data)))
			}
		case dtype.Float32:
			for ; len(data) > 0; data = data[4:] {
				x = append(x, math.Float32frombits(binary.LittleEndian.Uint32(data)))
			}
		case dtype.UInt8:
			for _, b := range data {
				x = append(x, float32(b))
			}
		}
		fqn := tensor.FQN
		if fqn == "output.weight" {
			fqn = "lm_head.weight"
		}
		out[fqn] = x
	}
	return out
}

// referenceManifest is the reference's job with its tokens as a file of bytes.
func referenceManifest(t *testing.T) *manifest.Manifest {
	tokens := readTensors(t, "tiny_llama.tokens_u8.safetensors")
	var text []byte
	for _, x := range tokens {
		for _, b := range x {
			text = append(text, byte(b))
		}
	}
	path := filepath.Join(t.TempDir(), "tokens.bin")
	require.NoError(t, os.WriteFile(path, text, 0o644))
	m := &manifest.Manifest{
		Schema: manifest.SchemaName,
		Model: &manifest.Model{Family: "llama3", Flavor: "custom", Config: manifest.ModelConfig{
			Dim: 64, NumLayers: 4, NumHeads: 4, NumKVHeads: 2, HeadDim: 16, FFNHidden: 96, VocabSize: 256, MaxSeqLen: 64, NormEps: 1e-5, RopeTheta: 500000,
			RopeScaling: &manifest.RopeScaling{Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalMaxLen: 8192},
		}},
		Mesh: &manifest.Mesh{WorldSize: 1, Dims: manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1, EP: 1}, Order: []string{"pp", "dp_replicate", "dp_shard", "cp", "tp"}},
		Training: &manifest.Training{SeqLen: 64, LocalBatchSize: 4, GlobalBatchSize: 4, GradAccumSteps: 1, Steps: 20, Seed: 42,
			DType: "float32", MixedPrecisionParam: "float32", MixedPrecisionReduce: "float32", MaxNorm: 1},
		Optimizer:   &manifest.Optimizer{Name: "AdamW", LR: 1e-3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1},
		LRScheduler: &manifest.LRScheduler{WarmupSteps: 5, DecayType: "linear"},
		Data:        &manifest.Data{Paths: []string{path}, Sequential: true, Tokenizer: "byte"},
	}
	m.Derive()
	return m
}

// PyTorch's gradients of step 1 to 5e-6 of their norm, and its 20 losses and norms in float64 to 2e-6.
func TestReferenceGradientsAndSteps(t *testing.T) {
	m := referenceManifest(t)
	want := readReference(t)
	weights, grads := readTensors(t, "tiny_llama.weights_bf16.safetensors"), readTensors(t, "tiny_llama.grads_step1_f32.safetensors")
	var got []record
	r, err := open(m, quiet(), false)
	require.NoError(t, err)
	r.train, err = r.openData(context.Background(), m.Data.Paths, nil, false)
	require.NoError(t, err)
	defer r.train.Close()
	r.report, err = newReport(r)
	require.NoError(t, err)
	r.report.seen = func(s record) { got = append(got, s) }
	err = local.Run(context.Background(), 1, func(ctx context.Context, c comm.Comm) error {
		k, err := r.newRank(c, true)
		if err != nil {
			return err
		}
		for fqn, w := range weights {
			require.Len(t, k.state.params[fqn], len(w), fqn)
			copy(k.state.params[fqn], w)
		}
		for k.pos.Step < 20 {
			if _, err := k.step(ctx, ctx); err != nil {
				return err
			}
			if k.pos.Step > 1 {
				continue
			}
			for fqn, g := range grads {
				require.Less(t, relativeError(k.state.grads[fqn], g), 5e-6, fqn)
			}
		}
		return nil
	})
	require.NoError(t, err)
	for i, w := range want.Float64 {
		require.InEpsilon(t, w.Loss, got[i].Loss, 2e-6, "loss of step %d", i+1)
		require.InEpsilon(t, w.GradNorm, got[i].GradNorm, 2e-6, "grad norm of step %d", i+1)
		require.InEpsilon(t, w.LR, got[i].LR, 1e-12, "lr of step %d", i+1)
	}
}

func relativeError(a, b []float32) float64 {
	var diff, norm float64
	for i := range b {
		diff += (float64(a[i]) - float64(b[i])) * (float64(a[i]) - float64(b[i]))
		norm += float64(b[i]) * float64(b[i])
	}
	return math.Sqrt(diff / norm)
}

func quiet() Options {
	return Options{LogFreq: 1, Console: io.Discard, Log: slog.New(slog.DiscardHandler)}
}
