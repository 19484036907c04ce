package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"titan/libtitan/exit"
)

const testdata = "../../testdata/tokenizer"

func load(t testing.TB, name string) Tokenizer {
	tok, err := Load(filepath.Join(testdata, name, "tokenizer.json"))
	require.NoError(t, err)
	return tok
}

// goldenGroup is one tokenizer, a file of testdata with parts replaced, and ids that the Rust library of
// Hugging Face gave for it (npm @anush008/tokenizers 0.6.0, special tokens of tokenizer_config.json added).
type goldenGroup struct {
	Name  string          `json:"name"`
	File  string          `json:"file"`
	Pre   json.RawMessage `json:"pre_tokenizer"`
	Model map[string]any  `json:"model"`
	Cases []struct {
		Text string  `json:"text"`
		IDs  []int32 `json:"ids"`
	} `json:"cases"`
}

// tokenizer writes the group's file and loads it.
func (g *goldenGroup) tokenizer(t *testing.T) Tokenizer {
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join(testdata, g.File))))
	path := filepath.Join(dir, "tokenizer.json")
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	var f map[string]any
	require.NoError(t, json.Unmarshal(b, &f))
	if g.Pre != nil {
		f["pre_tokenizer"] = g.Pre
	}
	for k, v := range g.Model {
		f["model"].(map[string]any)[k] = v
	}
	b, err = json.Marshal(f)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, b, 0o644))
	tok, err := Load(path)
	require.NoError(t, err)
	return tok
}

func TestIDsEqualHuggingFace(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(testdata, "golden.json"))
	require.NoError(t, err)
	var groups []goldenGroup
	require.NoError(t, json.Unmarshal(b, &groups))
	for _, g := range groups {
		t.Run(g.Name, func(t *testing.T) {
			tok := g.tokenizer(t)
			for _, c := range g.Cases {
				require.Equal(t, c.IDs, tok.Encode([]int32{}, []byte(c.Text)), "text %q", c.Text)
			}
		})
	}
}

func TestSpecialTokens(t *testing.T) {
	for _, c := range []struct {
		name      string
		tok       func() (Tokenizer, error)
		bos, eos  int32 // -1: none
		vocabSize int
	}{
		{"torchtitan", func() (Tokenizer, error) { return load(t, "torchtitan"), nil }, 2002, 2003, 2020},
		{"small", func() (Tokenizer, error) { return load(t, "small"), nil }, 659, 660, 664},
		{"byte 256", func() (Tokenizer, error) { return Byte(256) }, -1, -1, 256},
		{"byte 257", func() (Tokenizer, error) { return Byte(257) }, 256, -1, 257},
		{"byte 2048", func() (Tokenizer, error) { return Byte(2048) }, 256, 257, 2048},
	} {
		t.Run(c.name, func(t *testing.T) {
			tok, err := c.tok()
			require.NoError(t, err)
			bos, ok := tok.BOS()
			require.Equal(t, c.bos != -1, ok)
			if ok {
				require.Equal(t, c.bos, bos)
			}
			eos, ok := tok.EOS()
			require.Equal(t, c.eos != -1, ok)
			if ok {
				require.Equal(t, c.eos, eos)
			}
			require.Equal(t, c.vocabSize, tok.VocabSize())
		})
	}
	_, err := Byte(255)
	require.ErrorContains(t, err, "vocabulary of 255")
	require.Equal(t, int(exit.Input), exit.Code(err))
}

func TestDecodeReversesEncode(t *testing.T) {
	byteTok, err := Byte(256)
	require.NoError(t, err)
	for name, tok := range map[string]Tokenizer{"byte": byteTok, "small": load(t, "small")} {
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) {
			text := rapid.OneOf(rapid.SliceOf(rapid.Byte()), rapid.Map(rapid.String(), func(s string) []byte { return []byte(s) })).Draw(t, "text")
			require.Equal(t, string(text), string(tok.Decode(tok.Encode(nil, text))))
		}))
	}
	small := load(t, "small")
	require.Empty(t, small.Decode([]int32{-1, 1 << 30}))
}

// A run of one letter is one piece: it must not cost the square of its length.
func TestLongPiece(t *testing.T) {
	text := strings.Repeat("e", 1<<18)
	small := load(t, "small")
	require.Equal(t, text, string(small.Decode(small.Encode(nil, []byte(text)))))
}

func TestEncodeFromManyGoroutines(t *testing.T) {
	small := load(t, "small")
	text := []byte(strings.Repeat("func (x *T) String() string { return strings.Index }\n", 50))
	want := small.Encode(nil, text)
	var wg sync.WaitGroup
	got := make([][]int32, 8)
	for i := range got {
		wg.Go(func() { got[i] = small.Encode(nil, text) })
	}
	wg.Wait()
	for _, ids := range got {
		require.Equal(t, want, ids)
	}
}

func TestFingerprint(t *testing.T) {
	require.Equal(t, load(t, "small").Fingerprint(), load(t, "small").Fingerprint())
	require.NotEqual(t, load(t, "small").Fingerprint(), load(t, "torchtitan").Fingerprint())
	a, _ := Byte(258)
	b, _ := Byte(256)
	require.NotEqual(t, a.Fingerprint(), b.Fingerprint())
}

func TestLoadRefuses(t *testing.T) {
	model := func(rest string) string {
		return `{"pre_tokenizer":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{"a":0,"b":1}` + rest + `}}`
	}
	pre := func(p string) string { return `{"pre_tokenizer":` + p + `,"model":{"type":"BPE","vocab":{"a":0}}}` }
	for _, c := range []struct{ name, file, config, want string }{
		{"empty", "", "", "unexpected end"},
		{"not JSON", "hello", "", "invalid character"},
		{"another model", `{"model":{"type":"Unigram"}}`, "", `model "Unigram" is not supported`},
		{"no vocabulary", `{"model":{"type":"BPE"}}`, "", "vocabulary is empty"},
		{"SentencePiece", model(`,"byte_fallback":true`), "", "byte_fallback"},
		{"suffix", model(`,"end_of_word_suffix":"</w>"`), "", "end_of_word_suffix"},
		{"normalizer", `{"normalizer":{"type":"NFC"},"model":{"type":"BPE","vocab":{"a":0}}}`, "", `normalizer "NFC"`},
		{"no pre-tokenizer", `{"model":{"type":"BPE","vocab":{"a":0}}}`, "", "no pre_tokenizer"},
		{"not byte-level", pre(`{"type":"Whitespace"}`), "", `"Whitespace" is not supported`},
		{"empty sequence", pre(`{"type":"Sequence"}`), "", "empty sequence"},
		{"bad pattern", pre(`{"type":"Sequence","pretokenizers":[{"type":"Split","behavior":"Isolated","pattern":{"Regex":"("}},{"type":"ByteLevel"}]}`), "", "pattern"},
		{"no pattern", pre(`{"type":"Sequence","pretokenizers":[{"type":"Split","behavior":"Isolated"},{"type":"ByteLevel"}]}`), "", "Split"},
		{"merged with next", pre(`{"type":"Sequence","pretokenizers":[{"type":"Split","behavior":"MergedWithNext","pattern":{"String":" "}},{"type":"ByteLevel"}]}`), "", "MergedWithNext"},
		{"merge of strangers", model(`,"merges":["a c"]`), "", `merge 0, "a" "c"`},
		{"merge of three", model(`,"merges":["a b c"]`), "", "not two parts"},
		{"merge list of one", model(`,"merges":[["a"]]`), "", "merge of 1 parts"},
		{"negative id", `{"pre_tokenizer":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{"a":-1}}}`, "", "out of range"},
		{"huge id", `{"pre_tokenizer":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{"a":2000000000}}}`, "", "out of range"},
		{"unknown unk", model(`,"unk_token":"<unk>"`), "", `unk_token "<unk>"`},
		{"single word", `{"added_tokens":[{"id":2,"content":"<x>","single_word":true}],` + model("")[1:], "", "single_word"},
		{"config is not JSON", model(""), "{", "tokenizer_config.json"},
		{"unknown BOS", model(""), `{"bos_token":"<s>"}`, `bos_token "<s>"`},
		{"odd id", model(""), `{"added_tokens_decoder":{"x":{"content":"<x>","special":true}}}`, `"x" is not an id`},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "tokenizer.json")
			require.NoError(t, os.WriteFile(path, []byte(c.file), 0o644))
			if c.config != "" {
				require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), []byte(c.config), 0o644))
			}
			_, err := Load(path)
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "\n")
			require.Equal(t, int(exit.Input), exit.Code(err))
		})
	}
	_, err := Load(filepath.Join(t.TempDir(), "missing.json"))
	require.Equal(t, int(exit.Input), exit.Code(err))
}

func FuzzEncode(f *testing.F) {
	small := load(f, "small")
	f.Add([]byte("Hello <|begin_of_text|>\xff\xfe 12345\n\n  x"))
	f.Add([]byte("<|end<|end_of_text|>x<tool>"))
	f.Fuzz(func(t *testing.T, text []byte) {
		require.Equal(t, string(text), string(small.Decode(small.Encode(nil, text))))
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"added_tokens":[{"id":3,"content":"<s>"}],"pre_tokenizer":{"type":"Sequence","pretokenizers":[`+
		`{"type":"Split","pattern":{"Regex":"\\p{L}+|\\s+(?!\\S)"},"behavior":"Isolated"},{"type":"ByteLevel","use_regex":false}]},`+
		`"model":{"type":"BPE","unk_token":"a","fuse_unk":true,"ignore_merges":true,"vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}}`), "<s>")
	f.Add([]byte(`{"pre_tokenizer":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{"a":0},"merges":[["a","a"]]}}`), "")
	f.Fuzz(func(t *testing.T, model []byte, bos string) {
		name := tokenName(bos)
		tok, err := parse(model, config{BOS: &name})
		if err != nil {
			return
		}
		for _, id := range tok.Encode(nil, []byte("ab aab <s>\xff 12")) {
			require.GreaterOrEqual(t, id, int32(0))
			require.Less(t, int(id), tok.VocabSize())
		}
	})
}
