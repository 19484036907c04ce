package tokenizer

import (
	"encoding/json"
	"fmt"
	"strings"
)

// file is tokenizer.json, as far as it is used.
type file struct {
	Normalizer *stage `json:"normalizer"`
	Pre        *stage `json:"pre_tokenizer"`
	Added      []struct {
		ID int32 `json:"id"`
		addedOptions
	} `json:"added_tokens"`
	Model struct {
		Type         string           `json:"type"`
		Dropout      float64          `json:"dropout"`
		Unk          *string          `json:"unk_token"`
		FuseUnk      bool             `json:"fuse_unk"`
		Prefix       string           `json:"continuing_subword_prefix"`
		Suffix       string           `json:"end_of_word_suffix"`
		ByteFallback bool             `json:"byte_fallback"`
		IgnoreMerges bool             `json:"ignore_merges"`
		Vocab        map[string]int32 `json:"vocab"`
		Merges       []mergeRule      `json:"merges"`
	} `json:"model"`
}

// stage is a normalizer or a pre-tokenizer.
type stage struct {
	Type             string  `json:"type"`
	Pretokenizers    []stage `json:"pretokenizers"`
	Normalizers      []stage `json:"normalizers"`
	AddPrefixSpace   *bool   `json:"add_prefix_space"`
	UseRegex         *bool   `json:"use_regex"`
	Behavior         string  `json:"behavior"`
	Invert           bool    `json:"invert"`
	IndividualDigits bool    `json:"individual_digits"`
	Pattern          struct {
		Regex  *string `json:"Regex"`
		String *string `json:"String"`
	} `json:"pattern"`
}

type addedOptions struct {
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// mergeRule is written "left right" or ["left", "right"].
type mergeRule [2]string

func (m *mergeRule) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '[' {
		var parts []string
		if err := json.Unmarshal(b, &parts); err != nil {
			return err
		}
		if len(parts) != 2 {
			return fmt.Errorf("a merge of %d parts", len(parts))
		}
		*m = mergeRule(parts)
		return nil
	}
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	left, right, ok := strings.Cut(s, " ")
	if !ok || strings.Contains(right, " ") {
		return fmt.Errorf("merge %q is not two parts", s)
	}
	*m = mergeRule{left, right}
	return nil
}

// config is tokenizer_config.json, as far as it is used.
type config struct {
	BOS   *tokenName              `json:"bos_token"`
	EOS   *tokenName              `json:"eos_token"`
	Added map[string]addedOptions `json:"added_tokens_decoder"` // by id
}

// tokenName is written "<s>" or {"content": "<s>", ...}.
type tokenName string

func (n *tokenName) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '{' {
		var o addedOptions
		err := json.Unmarshal(b, &o)
		*n = tokenName(o.Content)
		return err
	}
	return json.Unmarshal(b, (*string)(n))
}
