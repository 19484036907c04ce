package tokenizer

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/dlclark/regexp2/v2"

	"titan/libtitan/exit"
)

// Load reads a Hugging Face tokenizer.json that holds a byte-level BPE model, as those of GPT-2, Llama 3 and
// Qwen do. BOS, EOS and further special tokens come from the tokenizer_config.json beside it, if there is one.
// What a file asks for and is not supported is an error: ids are the library's or there are none.
func Load(path string) (Tokenizer, error) {
	model, err := os.ReadFile(path)
	if err != nil {
		return nil, exit.Input.Errorf("tokenizer: %w", err)
	}
	configPath := filepath.Join(filepath.Dir(path), "tokenizer_config.json")
	conf, err := os.ReadFile(configPath)
	if errors.Is(err, fs.ErrNotExist) {
		conf = []byte("{}")
	} else if err != nil {
		return nil, exit.Input.Errorf("tokenizer: %w", err)
	}
	var c config
	if err := json.Unmarshal(conf, &c); err != nil {
		return nil, exit.Input.Errorf("tokenizer: %s: %w", configPath, err)
	}
	t, err := parse(model, c)
	if err != nil {
		return nil, exit.Input.Errorf("tokenizer: %s: %w", path, err)
	}
	sum := sha256.Sum256(append(model, conf...))
	t.sum = "sha256:" + hex.EncodeToString(sum[:])
	return t, nil
}

// parse makes the tokenizer that the bytes of a tokenizer.json describe.
func parse(model []byte, c config) (*bpe, error) {
	var f file
	if err := json.Unmarshal(model, &f); err != nil {
		return nil, err
	}
	if err := f.supported(); err != nil {
		return nil, err
	}
	t := &bpe{unkID: none, bos: none, eos: none, fuseUnk: f.Model.FuseUnk, bytes: map[int32][]byte{}}
	var err error
	if t.splitters, err = splitters(f.Pre); err != nil {
		return nil, err
	}
	if err := t.setVocab(&f); err != nil {
		return nil, err
	}
	if err := t.setAdded(&f, c); err != nil {
		return nil, err
	}
	for _, name := range []struct {
		key  string
		text *tokenName
		id   *int32
	}{{"bos_token", c.BOS, &t.bos}, {"eos_token", c.EOS, &t.eos}} {
		if name.text == nil || *name.text == "" {
			continue
		}
		id, ok := f.Model.Vocab[string(*name.text)]
		if !ok {
			return nil, fmt.Errorf("%s %q of tokenizer_config.json is not in the vocabulary", name.key, *name.text)
		}
		*name.id = id
	}
	return t, nil
}

// supported refuses what would make ids differ from the library's.
func (f *file) supported() error {
	m := &f.Model
	switch {
	case m.Type != "BPE" && !(m.Type == "" && len(m.Merges) > 0): // files of old leave the type out
		return fmt.Errorf("model %q is not supported (BPE)", m.Type)
	case len(m.Vocab) == 0:
		return errors.New("the vocabulary is empty")
	case m.ByteFallback:
		return errors.New("byte_fallback (SentencePiece) is not supported")
	case m.Dropout != 0:
		return errors.New("dropout is not supported")
	case m.Prefix != "" || m.Suffix != "":
		return errors.New("continuing_subword_prefix and end_of_word_suffix are not supported")
	case f.Normalizer != nil && !(f.Normalizer.Type == "Sequence" && len(f.Normalizer.Normalizers) == 0):
		return fmt.Errorf("normalizer %q is not supported", f.Normalizer.Type)
	}
	return nil
}

// maxID keeps a forged id from asking for an embedding of gigabytes; the largest vocabularies have 2^18 tokens.
const maxID = 1 << 24

// setVocab fills the tables of the model: bytes, merges, whole pieces.
func (t *bpe) setVocab(f *file) error {
	toByte := map[rune]byte{}
	for i, r := range byteAlphabet() {
		toByte[r] = byte(i)
		id, ok := f.Model.Vocab[string(r)]
		if !ok {
			id = none
		}
		t.byteID[i] = id
	}
	if f.Model.IgnoreMerges {
		t.whole = make(map[string]int32, len(f.Model.Vocab))
	}
	for token, id := range f.Model.Vocab {
		if id < 0 || id >= maxID {
			return fmt.Errorf("token %q has id %d, which is out of range", token, id)
		}
		raw, ok := rawBytes(token, toByte)
		if ok && t.whole != nil {
			t.whole[string(raw)] = id
		}
		t.bytes[id] = raw
		t.vocabSize = max(t.vocabSize, int(id)+1)
	}
	if unk := f.Model.Unk; unk != nil {
		id, ok := f.Model.Vocab[*unk]
		if !ok {
			return fmt.Errorf("unk_token %q is not in the vocabulary", *unk)
		}
		t.unkID = id
	}
	t.merges = make(map[pair]merge, len(f.Model.Merges))
	for rank, rule := range f.Model.Merges {
		left, okL := f.Model.Vocab[rule[0]]
		right, okR := f.Model.Vocab[rule[1]]
		id, ok := f.Model.Vocab[rule[0]+rule[1]]
		if !okL || !okR || !ok {
			return fmt.Errorf("merge %d, %q %q: a part or the whole is not in the vocabulary", rank, rule[0], rule[1])
		}
		t.merges[pair{left, right}] = merge{int32(rank), id} // the last of two wins, as upstream
	}
	return nil
}

// setAdded takes the added tokens of both files. One that the vocabulary has keeps that id.
func (t *bpe) setAdded(f *file, c config) error {
	t.added = make([]addedSet, 2) // those that skip the normalizer are searched first, as upstream
	seen := map[string]bool{}
	add := func(id int32, o addedOptions) error {
		if o.Content == "" || seen[o.Content] {
			return nil
		}
		seen[o.Content] = true
		if o.SingleWord || o.LStrip || o.RStrip {
			return fmt.Errorf("added token %q: single_word, lstrip and rstrip are not supported", o.Content)
		}
		if known, ok := f.Model.Vocab[o.Content]; ok {
			id = known
		}
		if id < 0 || id >= maxID {
			return fmt.Errorf("added token %q has id %d, which is out of range", o.Content, id)
		}
		set := 0
		if o.Normalized {
			set = 1
		}
		t.added[set].add(addedToken{o.Content, id})
		t.bytes[id] = []byte(o.Content)
		f.Model.Vocab[o.Content] = id
		t.vocabSize = max(t.vocabSize, int(id)+1)
		return nil
	}
	for _, a := range f.Added {
		if err := add(a.ID, a.addedOptions); err != nil {
			return err
		}
	}
	for key, o := range c.Added {
		id, err := strconv.ParseInt(key, 10, 32)
		if err != nil {
			return fmt.Errorf("tokenizer_config.json: added_tokens_decoder: %q is not an id", key)
		}
		if !o.Special { // torchtitan adds the special ones alone
			continue
		}
		if err := add(int32(id), o); err != nil {
			return err
		}
	}
	return nil
}

// splitters turns a pre-tokenizer into the list of its steps, of which ByteLevel is the last.
func splitters(pre *stage) ([]splitter, error) {
	if pre == nil {
		return nil, errors.New("no pre_tokenizer (byte-level BPE has ByteLevel)")
	}
	steps := []stage{*pre}
	if pre.Type == "Sequence" {
		steps = pre.Pretokenizers
	}
	var out []splitter
	for i, step := range steps {
		last := i == len(steps)-1
		if last != (step.Type == "ByteLevel") {
			return nil, fmt.Errorf("pre_tokenizer %q is not supported here (ByteLevel has to be the last and the only one)", step.Type)
		}
		s, err := step.splitter()
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	if len(out) == 0 {
		return nil, errors.New("pre_tokenizer is an empty sequence (byte-level BPE has ByteLevel)")
	}
	return out, nil
}

// splitter compiles one step.
func (p *stage) splitter() (s splitter, err error) {
	pattern := ""
	switch p.Type {
	case "ByteLevel":
		s.prefixSpace = p.AddPrefixSpace == nil || *p.AddPrefixSpace
		if p.UseRegex != nil && !*p.UseRegex {
			return s, nil
		}
		pattern = byteLevelPattern
	case "Digits":
		pattern = `\p{N}+`
		if p.IndividualDigits {
			pattern = `\p{N}`
		}
	case "Split":
		switch {
		case p.Pattern.Regex != nil:
			pattern = *p.Pattern.Regex
		case p.Pattern.String != nil:
			pattern = regexp2.Escape(*p.Pattern.String)
		}
		s.dropGaps = p.Behavior == "Removed" && p.Invert
		if pattern == "" || p.Behavior != "Isolated" && !s.dropGaps {
			return s, fmt.Errorf("pre_tokenizer Split with behavior %q, invert %v is not supported", p.Behavior, p.Invert)
		}
	default:
		return s, fmt.Errorf("pre_tokenizer %q is not supported", p.Type)
	}
	if s.re, err = compile(pattern); err != nil {
		return s, fmt.Errorf("pre_tokenizer pattern: %w", err)
	}
	return s, nil
}

// byteAlphabet is GPT-2's: the character that stands for each byte in a vocabulary. Printable ones stand for
// themselves, the others for the characters from 256 on.
func byteAlphabet() (alphabet [256]rune) {
	next := rune(256)
	for b := range alphabet {
		if b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae {
			alphabet[b] = rune(b)
			continue
		}
		alphabet[b] = next
		next++
	}
	return alphabet
}

// rawBytes is what a token of the vocabulary stands for; false, and the token as it is written, where
// it has a character outside the byte alphabet.
func rawBytes(token string, toByte map[rune]byte) ([]byte, bool) {
	raw := make([]byte, 0, len(token))
	for _, r := range token {
		b, ok := toByte[r]
		if !ok {
			return []byte(token), false
		}
		raw = append(raw, b)
	}
	return raw, true
}
