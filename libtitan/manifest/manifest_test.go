package manifest

import (
	"bytes"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// sample is a valid manifest: torchtitan's debugmodel on two pipeline ranks.
func sample() *Manifest {
	m := &Manifest{
		Schema: SchemaName,
		Model: &Model{Family: "llama3", Flavor: "debugmodel", Config: ModelConfig{
			Dim: 256, NumLayers: 6, NumHeads: 16, NumKVHeads: 16, HeadDim: 16, FFNHidden: 768, VocabSize: 2048, MaxSeqLen: 131072,
			NormEps: 1e-5, RopeTheta: 500000, RopeScaling: &RopeScaling{8, 1, 4, 8192},
		}},
		Mesh: &Mesh{WorldSize: 2, Dims: MeshDims{2, 1, 1, 1, 1, 1}, Order: []string{"pp", "dp_replicate", "dp_shard", "cp", "tp"}},
		Training: &Training{SeqLen: 2048, LocalBatchSize: 8, GlobalBatchSize: 8, GradAccumSteps: 1, Steps: 10, Seed: 42,
			DType: "float32", MixedPrecisionParam: "float32", MixedPrecisionReduce: "float32", MaxNorm: 1},
		Optimizer:   &Optimizer{"AdamW", 8e-4, 0.9, 0.95, 1e-8, 0.1},
		LRScheduler: &LRScheduler{WarmupSteps: 2, DecayType: "linear"},
		Pipeline: &Pipeline{Schedule: "1F1B", NumMicrobatches: 8, Stages: []Stage{
			{0, 0, []string{"tok_embeddings", "layers.0", "layers.1", "layers.2"}, 0},
			{1, 1, []string{"layers.3", "layers.4", "layers.5", "norm", "lm_head"}, 0},
		}},
	}
	m.Derive()
	return m
}

func text(t require.TestingT, m *Manifest) string {
	var b bytes.Buffer
	require.NoError(t, Write(&b, m))
	return b.String()
}

func TestWriteGolden(t *testing.T) {
	want, err := os.ReadFile("testdata/debugmodel.json")
	require.NoError(t, err)
	require.Equal(t, string(want), text(t, sample()))
}

func TestReadWritesSameBytes(t *testing.T) {
	want := text(t, sample())
	m, err := Read(strings.NewReader(want))
	require.NoError(t, err)
	require.NoError(t, Validate(m))
	require.Equal(t, want, text(t, m))
}

// An untouched section keeps its bytes though its form is not ours; a changed one takes our form.
func TestForeignAndUntouchedSectionsPass(t *testing.T) {
	const in = `{"x-mine": {"b":1 ,"a": [ 1e3, "<&>"]}, "schema":"titan.manifest/v1",
 "data": {"paths":["a","b<c"], "tokenizer" : "byte"}, "checkpoint":{"folder":"out"},"x-also":null}`
	const want = `{
  "schema": "titan.manifest/v1",
  "checkpoint": {
    "folder": "<new>"
  },
  "data": {"paths":["a","b<c"], "tokenizer" : "byte"},
  "x-mine": {"b":1 ,"a": [ 1e3, "<&>"]},
  "x-also": null
}
`
	m, err := Read(strings.NewReader(in))
	require.NoError(t, err)
	m.Checkpoint.Folder = "<new>"
	require.Equal(t, want, text(t, m))
}

func TestReadRefuses(t *testing.T) {
	const head = `{"schema": "titan.manifest/v1", `
	for _, c := range []struct{ name, in, want string }{
		{"empty", "", "manifest: the input is empty: the tool before this one wrote nothing"},
		{"blank", " \n\n", "manifest: the input is empty: the tool before this one wrote nothing"},
		{"not JSON", "hello", "manifest: line 1: is not JSON: invalid character 'h' looking for beginning of value"},
		{"list", "[]", "manifest: line 1: want one JSON object as meshplan writes it, got a list"},
		{"null", "null", "manifest: line 1: want one JSON object as meshplan writes it, got null"},
		{"number", "1", "manifest: line 1: want one JSON object as meshplan writes it, got 1"},
		{"no schema", "{}", `manifest: schema: want "titan.manifest/v1", got ""`},
		{"other schema", `{"schema": "titan.manifest/v2"}`, `manifest: schema: want "titan.manifest/v1", got "titan.manifest/v2"`},
		{"cut short", head + "\n\"mesh\": {", "manifest: line 2: mesh: ends in the middle: it was cut short"},
		{"cut in a word", head + `"mo`, "manifest: line 1: ends in the middle: it was cut short"},
		{"two documents", `{"schema": "titan.manifest/v1"} {}`, "manifest: line 1: something follows the document: want one JSON object"},
		{"unknown section", head + `"modle": {}}`, "manifest: line 1: modle: unknown section (its name may start with x-): did you mean model?"},
		{"unknown field", head + `"training": {"seq_length": 3}}`, "manifest: line 1: training.seq_length: unknown field: did you mean training.seq_len?"},
		{"deep unknown field", head + `"model": {"config": {"n_layers": 3}}}`, "manifest: line 1: model.config.n_layers: unknown field: did you mean model.config.num_layers?"},
		{"other case", head + `"Model": {}}`, "manifest: line 1: Model: unknown section (its name may start with x-): did you mean model?"},
		{"nothing near", head + `"compile": {"zzzzzzzzz": 1}}`, "manifest: line 1: compile.zzzzzzzzz: unknown field: not among enable, components"},
		{"twice", head + `"mesh": {"world_size": 1, "world_size": 2}}`, "manifest: line 1: mesh.world_size: given twice"},
		{"section twice", head + `"x-a": 1, "x-a": 2}`, "manifest: line 1: x-a: given twice"},
		{"twice in foreign", head + `"x-a": {"b": [{"c": 1, "c": 2}]}}`, "manifest: line 1: x-a.b.0.c: given twice"},
		{"string for number", head + `"training": {"steps": "many"}}`, `manifest: line 1: training.steps: want a whole number, got "many"`},
		{"fraction", head + `"training": {"steps": 1.5}}`, "manifest: line 1: training.steps: want a whole number, got 1.5"},
		{"too large", head + `"training": {"steps": 99999999999999999999}}`, "manifest: line 1: training.steps: want a whole number, got 99999999999999999999"},
		{"negative seed", head + `"training": {"seed": -1}}`, "manifest: line 1: training.seed: want a whole number from 0, got -1"},
		{"infinite", head + `"training": {"max_norm": 1e999}}`, "manifest: line 1: training.max_norm: want a number, got 1e999"},
		{"null number", head + `"training": {"steps": null}}`, "manifest: line 1: training.steps: want a whole number, got null"},
		{"list for object", head + `"training": []}`, "manifest: line 1: training: want an object, got a list"},
		{"bool", head + `"compile": {"enable": 1}}`, "manifest: line 1: compile.enable: want true or false, got 1"},
		{"list item", head + `"compile": {"components": ["model", 1]}}`, "manifest: line 1: compile.components.1: want a string, got 1"},
		{"odd name", head + `"a\nb": 1}`, `manifest: line 1: "a\nb": unknown section (its name may start with x-): not among schema, model, mesh, training, optimizer, lr_scheduler, activation_checkpoint, compile, float8, estimate, pipeline, checkpoint, data`},
		{"long name", head + `"mesh": {"` + strings.Repeat("a", 1000000) + `": 1}}`, `manifest: line 1: "mesh.` + strings.Repeat("a", 75) + `": unknown field: not among world_size, dims, order, disable_sequence_parallel, disable_loss_parallel, cp_rotate, reshard_after_forward`},
		{"deep", head + `"x-a": ` + strings.Repeat("[", 100000), "manifest: line 1: is nested deeper than 64 levels"},
		{"large", strings.Repeat(" ", maxBytes+1), "manifest: is larger than 16 MiB"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Read(strings.NewReader(c.in))
			require.EqualError(t, err, c.want)
			require.Equal(t, 3, err.(*Error).ExitCode())
		})
	}
}

func TestSet(t *testing.T) {
	for _, c := range []struct {
		set  string
		want any
		get  func(m *Manifest) any
	}{
		{"training.seq_len=4k", 4000, func(m *Manifest) any { return m.Training.SeqLen }},
		{"training.seq_len=4Ki", 4096, func(m *Manifest) any { return m.Training.SeqLen }},
		{"training.seed=18446744073709551615", uint64(1<<64 - 1), func(m *Manifest) any { return m.Training.Seed }},
		{"optimizer.lr=3e-4", 3e-4, func(m *Manifest) any { return m.Optimizer.LR }},
		{"model.flavor=a=b", "a=b", func(m *Manifest) any { return m.Model.Flavor }},
		{`model.flavor="q"`, "q", func(m *Manifest) any { return m.Model.Flavor }},
		{"model.config.tied=true", true, func(m *Manifest) any { return m.Model.Config.Tied }},
		{"model.config.rope_scaling=null", (*RopeScaling)(nil), func(m *Manifest) any { return m.Model.Config.RopeScaling }},
		{"model.config.rope_scaling.factor=32", 32.0, func(m *Manifest) any { return m.Model.Config.RopeScaling.Factor }},
		{"lr_scheduler.decay_ratio=0.8", 0.8, func(m *Manifest) any { return *m.LRScheduler.DecayRatio }},
		{"lr_scheduler.total_steps=20", 20, func(m *Manifest) any { return *m.LRScheduler.TotalSteps }},
		{"compile.components=model,loss", []string{"model", "loss"}, func(m *Manifest) any { return m.Compile.Components }},
		{`compile.components=["loss"]`, []string{"loss"}, func(m *Manifest) any { return m.Compile.Components }},
		{"compile.components=", []string{}, func(m *Manifest) any { return m.Compile.Components }},
		{"pipeline.stages.1.pp_rank=5", 5, func(m *Manifest) any { return m.Pipeline.Stages[1].PPRank }},
		{`mesh.dims={"pp": 3, "tp": 2}`, MeshDims{PP: 3, DPReplicate: 1, DPShard: 1, CP: 1, TP: 2, EP: 1}, func(m *Manifest) any { return m.Mesh.Dims }},
	} {
		t.Run(c.set, func(t *testing.T) {
			m := sample()
			require.NoError(t, Set(m, c.set))
			require.Equal(t, c.want, c.get(m))
		})
	}
}

func TestSetDerives(t *testing.T) {
	m := sample()
	require.NoError(t, Set(m, "model.config.vocab_size=256", "training.global_batch_size=32", "training.seq_len=64"))
	require.Equal(t, m.Model.Config.NumParams(), m.Model.NumParams)
	require.Equal(t, m.Model.Config.FlopsPerToken(64), m.Model.FlopsPerToken)
	require.Equal(t, 4, m.Training.GradAccumSteps)

	require.NoError(t, Set(m, "training.grad_accum_steps=7", "training.steps=3"))
	require.Equal(t, 7, m.Training.GradAccumSteps, "what is set stays, for Validate to refuse")
}

func TestSetRefuses(t *testing.T) {
	for set, want := range map[string]string{
		"training.steps":            "manifest: training.steps: want section.field=value",
		"trainig.steps=1":           "manifest: trainig.steps: unknown field: did you mean training?",
		"training.step=1":           "manifest: training.step: unknown field: did you mean training.steps?",
		"model.config.dims=1":       "manifest: model.config.dims: unknown field: did you mean model.config.dim?",
		"training.steps.x=1":        "manifest: training.steps.x: training.steps holds a whole number, it has no fields",
		"training.steps=ten":        `manifest: training.steps: want a whole number, got "ten"`,
		"training.steps=":           `manifest: training.steps: want a whole number, got ""`,
		"training.steps=1 2":        `manifest: training.steps: something follows the value: "1 2"`,
		"training.steps=1.5":        "manifest: training.steps: want a whole number, got 1.5",
		"training.seed=-1":          "manifest: training.seed: want a whole number from 0, got -1",
		"optimizer.lr=NaN":          `manifest: optimizer.lr: want a number, got "NaN"`,
		"compile.enable=yes":        `manifest: compile.enable: want true or false, got "yes"`,
		"pipeline.stages.2.stage=1": `manifest: pipeline.stages.2.stage: pipeline.stages has 2 items, numbered from 0; "2" is none of them`,
		`mesh.dims={"pq": 1}`:       "manifest: mesh.dims.pq: unknown field: did you mean mesh.dims.pp?",
		"read=1":                    "manifest: read: unknown field: not among schema, model, mesh, training, optimizer, lr_scheduler, activation_checkpoint, compile, float8, estimate, pipeline, checkpoint, data",
	} {
		t.Run(set, func(t *testing.T) { require.EqualError(t, Set(sample(), set), want) })
	}
}

// What is written reads back as the same value, and is written again as the same bytes.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := rapid.Custom(func(t *rapid.T) *Manifest {
			m := &Manifest{Schema: SchemaName}
			v := reflect.ValueOf(m).Elem()
			for i := 1; i < v.NumField(); i++ {
				if f := v.Field(i); f.CanSet() {
					fill(t, f)
				}
			}
			return m
		}).Draw(t, "manifest")
		first := text(t, m)
		back, err := Read(strings.NewReader(first))
		require.NoError(t, err)
		require.Equal(t, first, text(t, back))
		back.read = nil
		require.Equal(t, first, text(t, back))
	})
}

// fill puts a drawn value in v.
func fill(t *rapid.T, v reflect.Value) {
	switch {
	case v.Kind() == reflect.Pointer:
		if rapid.Bool().Draw(t, "present") {
			v.Set(reflect.New(v.Type().Elem()))
			fill(t, v.Elem())
		}
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i))
		}
	case v.Kind() == reflect.Slice:
		if n := rapid.IntRange(-1, 3).Draw(t, "items"); n >= 0 { // else it stays nil
			v.Set(reflect.MakeSlice(v.Type(), n, n))
		}
		for i := range v.Len() {
			fill(t, v.Index(i))
		}
	case v.Kind() == reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "bool"))
	case v.Kind() == reflect.String:
		v.SetString(rapid.String().Draw(t, "string"))
	case v.CanInt():
		v.SetInt(rapid.Int64().Draw(t, "int"))
	case v.CanUint():
		v.SetUint(rapid.Uint64().Draw(t, "uint"))
	case v.CanFloat():
		v.SetFloat(rapid.Float64().Draw(t, "float"))
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(text(f, sample())))
	f.Add([]byte(`{"schema":"titan.manifest/v1","x-a":{"b":[1,null,"c"]},"model":{"config":{"rope_scaling":null}}}`))
	f.Add([]byte(`{"schema":"titan.manifest/v1","mesh":{"world_size":1e999}}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		m, err := Read(bytes.NewReader(in))
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		if err := Validate(m); err != nil {
			require.NotContains(t, err.Error(), "\n")
		}
		first := text(t, m)
		back, err := Read(strings.NewReader(first))
		require.NoError(t, err)
		require.Equal(t, first, text(t, back))
	})
}

func FuzzSet(f *testing.F) {
	f.Add("training.steps=4k")
	f.Add(`mesh.dims={"pp":3}`)
	f.Add("compile.components=a,b")
	f.Add("pipeline.stages.0.fqns=norm")
	f.Fuzz(func(t *testing.T, assignment string) {
		m := sample()
		if err := Set(m, assignment); err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		if err := Validate(m); err != nil {
			require.NotContains(t, err.Error(), "\n")
		}
	})
}
