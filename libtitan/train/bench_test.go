package train

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/comm"
	"titan/libtitan/comm/local"
	"titan/libtitan/manifest"
	"titan/libtitan/model/llama3"
)

// BenchmarkTrain measures whole optimizer steps of the debugmodel on this machine: tokens/s is of the median
// step after the second.
func BenchmarkTrain(b *testing.B) {
	for _, dtype := range []string{"float32", "bfloat16"} {
		for _, size := range []struct{ seqLen, rows int }{{256, 8}, {2048, 2}} {
			b.Run(fmt.Sprintf("%s/seq%d", dtype, size.seqLen), func(b *testing.B) {
				m := debugJob(b, dtype, size.seqLen, size.rows)
				for b.Loop() {
					b.ReportMetric(tokensPerSecond(b, m, 8), "tokens/s")
				}
			})
		}
	}
}

func debugJob(b *testing.B, dtype string, seqLen, rows int) *manifest.Manifest {
	preset, err := llama3.Find("debugmodel")
	require.NoError(b, err)
	text := make([]byte, 1<<20)
	for i := range text {
		text[i] = byte(i * i >> 7)
	}
	path := filepath.Join(b.TempDir(), "text")
	require.NoError(b, os.WriteFile(path, text, 0o644))
	m := &manifest.Manifest{
		Schema: manifest.SchemaName,
		Model:  &manifest.Model{Family: "llama3", Flavor: "debugmodel", Config: preset.Config},
		Mesh:   &manifest.Mesh{WorldSize: 1, Dims: manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1, EP: 1}, Order: []string{"pp", "dp_replicate", "dp_shard", "cp", "tp"}},
		Training: &manifest.Training{SeqLen: seqLen, LocalBatchSize: rows, GlobalBatchSize: rows, GradAccumSteps: 1, Steps: 100, Seed: 1,
			DType: "float32", MixedPrecisionParam: dtype, MixedPrecisionReduce: "float32", MaxNorm: 1},
		Optimizer:   &manifest.Optimizer{Name: "AdamW", LR: 8e-4, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1},
		LRScheduler: &manifest.LRScheduler{DecayType: "linear"},
		Data:        &manifest.Data{Paths: []string{path}, Tokenizer: "byte"},
	}
	m.Model.Config.MaxSeqLen = seqLen
	m.Derive()
	return m
}

// tokensPerSecond runs n steps and takes the median of those after the second.
func tokensPerSecond(b *testing.B, m *manifest.Manifest, n int) float64 {
	r, err := open(m, quiet(), false)
	require.NoError(b, err)
	r.train, err = r.openData(context.Background(), m.Data.Paths, nil, true)
	require.NoError(b, err)
	defer r.train.Close()
	r.report, err = newReport(r)
	require.NoError(b, err)
	var seconds []float64
	r.report.seen = func(s record) { seconds = append(seconds, s.StepSeconds) }
	require.NoError(b, local.Run(context.Background(), 1, func(ctx context.Context, c comm.Comm) error {
		k, err := r.newRank(c, true)
		for err == nil && k.pos.Step < n {
			_, err = k.step(ctx, ctx)
		}
		return err
	}))
	seconds = seconds[2:]
	slices.Sort(seconds)
	return float64(m.Training.SeqLen*m.Training.GlobalBatchSize) / seconds[len(seconds)/2]
}
