// Package tokenizer turns text into token ids. There are two kinds: [Byte], where every byte is its own token,
// and [Load], which reads a Hugging Face tokenizer.json and gives the ids that the tokenizers library gives.
package tokenizer

// Tokenizer turns text into ids and back. All methods may be called from several goroutines at once.
type Tokenizer interface {
	// Encode appends the ids of text to dst, without BOS and EOS, and returns the result. The text need
	// not be UTF-8.
	Encode(dst []int32, text []byte) []int32
	// Decode joins the bytes that ids stand for. An id that stands for none adds nothing.
	Decode(ids []int32) []byte
	// BOS and EOS are put before and after a document; false where the vocabulary has none.
	BOS() (int32, bool)
	EOS() (int32, bool)
	// VocabSize is the number of rows that an embedding of these ids needs.
	VocabSize() int
	// Fingerprint is the same for two tokenizers only when they give the same ids.
	Fingerprint() string
}
