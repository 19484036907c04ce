package tokenizer

import (
	"fmt"

	"titan/libtitan/exit"
)

// Bytes is the tokenizer of [Byte]. Token i of a document is byte i, so a reader can seek in a text file
// without reading what comes before.
type Bytes struct{ vocabSize int }

const byteBOS, byteEOS = 256, 257

// Byte maps each byte to its value. BOS is 256 and EOS 257, each where a vocabulary of vocabSize has it: a
// vocabulary of exactly 256 has neither, one of 257 has BOS alone.
func Byte(vocabSize int) (Tokenizer, error) {
	if vocabSize < 256 {
		return nil, exit.Input.Errorf("tokenizer: byte: the model's vocabulary of %d is smaller than the 256 byte values", vocabSize)
	}
	return Bytes{vocabSize}, nil
}

func (b Bytes) Encode(dst []int32, text []byte) []int32 {
	for _, c := range text {
		dst = append(dst, int32(c))
	}
	return dst
}

func (b Bytes) Decode(ids []int32) []byte {
	text := make([]byte, 0, len(ids))
	for _, id := range ids {
		if 0 <= id && id < 256 {
			text = append(text, byte(id))
		}
	}
	return text
}

func (b Bytes) BOS() (int32, bool) { return byteBOS, b.vocabSize > byteBOS }

func (b Bytes) EOS() (int32, bool) { return byteEOS, b.vocabSize > byteEOS }

// VocabSize is the size that was given to [Byte]: pre-tokenised data may use ids above EOS.
func (b Bytes) VocabSize() int { return b.vocabSize }

func (b Bytes) Fingerprint() string { return fmt.Sprintf("byte:%d", min(b.vocabSize, byteEOS+1)) }
