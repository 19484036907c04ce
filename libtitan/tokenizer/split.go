package tokenizer

import (
	"slices"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

// addedToken is text that is one token wherever it stands, as <|begin_of_text|>.
type addedToken struct {
	content string
	id      int32
}

// addedSet finds added tokens by their first byte; each list is longest first.
type addedSet [256][]addedToken

func (a *addedSet) add(token addedToken) {
	list := &a[token.content[0]]
	*list = append(*list, token)
	slices.SortStableFunc(*list, func(x, y addedToken) int { return len(y.content) - len(x.content) })
}

// find gives the leftmost added token in text, the longest of those that start there; nil and
// len(text) where there is none.
func (a *addedSet) find(text []byte) (start int, token *addedToken) {
	for i, c := range text {
		for k := range a[c] {
			token := &a[c][k]
			if rest := text[i:]; len(rest) >= len(token.content) && string(rest[:len(token.content)]) == token.content {
				return i, token
			}
		}
	}
	return len(text), nil
}

// splitter cuts text into the matches of an expression and the gaps between them.
type splitter struct {
	prefixSpace bool            // text that does not start with a space gets one
	re          *regexp2.Regexp // nil: text stays whole
	dropGaps    bool
}

// byteLevelPattern is GPT-2's, which the ByteLevel pre-tokenizer has built in.
const byteLevelPattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

func compile(pattern string) (*regexp2.Regexp, error) {
	// Unbounded: a match may be as long as the text, and Encode has no way to fail.
	return regexp2.Compile(pattern, regexp2.None, regexp2.OptionMaxBacktrackingStackSize(-1))
}

// split cuts text by the splitters from number i on and encodes the pieces.
func (t *bpe) split(dst []int32, s *scratch, i int, text []byte) []int32 {
	if len(text) == 0 {
		return dst
	}
	if i == len(t.splitters) {
		return t.encodePiece(dst, s, text)
	}
	sp := &t.splitters[i]
	if sp.prefixSpace && text[0] != ' ' {
		text = append([]byte{' '}, text...)
	}
	if sp.re == nil {
		return t.split(dst, s, i+1, text)
	}
	runes := s.runes[i][:0]
	for rest := text; len(rest) > 0; {
		r, size := utf8.DecodeRune(rest)
		runes, rest = append(runes, r), rest[size:]
	}
	s.runes[i] = runes
	runesDone := 0
	take := func(runeEnd int, keep bool) {
		size := byteLen(text, runeEnd-runesDone)
		if keep {
			dst = t.split(dst, s, i+1, text[:size])
		}
		text, runesDone = text[size:], runeEnd
	}
	// With no time limit and no stack limit there is no error to return.
	_ = sp.re.FindRunesMatches(runes, 0, func(m regexp2.MatchView) bool {
		start, length, _ := m.GroupRange(0)
		take(start, !sp.dropGaps)
		take(start+length, true)
		return true
	})
	take(len(runes), !sp.dropGaps)
	return dst
}

// byteLen is the number of bytes that the first n runes of text take; a byte that is not UTF-8 is a rune.
func byteLen(text []byte, n int) int {
	size := 0
	for ; n > 0; n-- {
		_, width := utf8.DecodeRune(text[size:])
		size += width
	}
	return size
}
