package manifest

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
)

func compileSchema(t *testing.T) *jsonschema.Schema {
	text, err := Schema()
	require.NoError(t, err)
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	require.NoError(t, c.AddResource("manifest.json", doc))
	s, err := c.Compile("manifest.json")
	require.NoError(t, err)
	return s
}

func TestSchemaAgreesWithValidate(t *testing.T) {
	s := compileSchema(t)
	check := func(m *Manifest) error {
		doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text(t, m)))
		require.NoError(t, err)
		return s.Validate(doc)
	}
	require.NoError(t, check(sample()))
	for _, set := range []string{"model.config.rope_scaling=null", "lr_scheduler.decay_ratio=0.5", "lr_scheduler.total_steps=3",
		"compile.components=model,loss", "float8.recipe=rowwise", "checkpoint.folder=out", "checkpoint.exclude_from_loading=dataloader,train_state", "checkpoint.load_step=-1", "data.paths=a,b", "activation_checkpoint.mode=full"} {
		m := sample()
		require.NoError(t, Set(m, set))
		require.NoError(t, Validate(m), set)
		require.NoError(t, check(m), set)
	}
	for _, l := range limits {
		m := sample()
		m.LRScheduler.TotalSteps, m.LRScheduler.DecayRatio = new(int), new(float64)
		m.Checkpoint, m.Data = &Checkpoint{Interval: 1, LoadStep: new(int), KeepLatestK: 1}, &Data{ValidationInterval: 1, ValidationSteps: 1}
		require.NoError(t, Set(m, l.path+"=-2"))
		require.ErrorContains(t, Validate(m), l.path)
		require.ErrorContains(t, check(m), "/"+strings.ReplaceAll(l.path, ".", "/"))
	}
	for _, c := range choices {
		m := sample()
		require.NoError(t, Set(m, c.path+"=wrong"))
		require.ErrorContains(t, Validate(m), c.path)
		require.ErrorContains(t, check(m), "/"+strings.ReplaceAll(c.path, ".", "/"))
	}
}

func TestSchemaRefusesUnknownFields(t *testing.T) {
	s := compileSchema(t)
	for in, ok := range map[string]bool{`"x-mine": {"a": 1}`: true, `"y-mine": 1`: false} {
		doc, err := jsonschema.UnmarshalJSON(strings.NewReader(strings.Replace(text(t, sample()), "{", "{"+in+",", 1)))
		require.NoError(t, err)
		require.Equal(t, ok, s.Validate(doc) == nil, in)
	}
}

// Every field is described, in words that stand once, beside the field.
func TestSchemaDescribesFields(t *testing.T) {
	data, err := Schema()
	require.NoError(t, err)
	var doc map[string]any
	require.NoError(t, json.Unmarshal(data, &doc))
	require.Equal(t, "https://json-schema.org/draft/2020-12/schema", doc["$schema"])
	var missing []string
	var walk func(path string, s map[string]any)
	walk = func(path string, s map[string]any) {
		props, _ := s["properties"].(map[string]any)
		for name, p := range props {
			p := p.(map[string]any)
			if one, ok := p["oneOf"].([]any); ok { // it may be null
				p = one[0].(map[string]any)
			}
			if p["description"] == nil {
				missing = append(missing, path+name)
			}
			walk(path+name+".", p)
		}
		if items, ok := s["items"].(map[string]any); ok {
			walk(path, items)
		}
	}
	walk("", doc)
	require.Empty(t, missing)
}
