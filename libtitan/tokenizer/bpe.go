package tokenizer

import (
	"container/heap"
	"sync"
)

// bpe is byte-level byte pair encoding: text is cut into added tokens and the rest, the rest into pieces by
// the splitters, and each piece is merged from single bytes upwards, always the pair of lowest rank first.
// Upstream: huggingface/tokenizers, tokenizers/src/models/bpe.
type bpe struct {
	added     []addedSet // searched in this order
	splitters []splitter
	byteID    [256]int32 // id of a single byte; unkID or none where the vocabulary lacks it
	fuseUnk   bool       // a run of bytes that the vocabulary lacks is one unkID
	unkID     int32      // none: such bytes are dropped
	merges    map[pair]merge
	whole     map[string]int32 // pieces that are tokens as they stand, whatever the merges; nil unless ignore_merges
	bytes     map[int32][]byte // what an id stands for
	bos, eos  int32            // or none
	vocabSize int
	sum       string
	scratch   sync.Pool // of *scratch
}

const none int32 = -1

type pair struct{ left, right int32 }

type merge struct{ rank, id int32 }

// scratch is what one Encode works in.
type scratch struct {
	cache   map[string][]int32 // ids of pieces seen before
	runes   [][]rune           // one buffer a splitter
	symbols []symbol
	queue   mergeQueue
}

// A piece is cached when it is short, and while the cache is small: some 10 MB a goroutine.
const (
	maxCachedPieces = 1 << 16
	maxCachedBytes  = 64
)

func (t *bpe) BOS() (int32, bool)  { return t.bos, t.bos != none }
func (t *bpe) EOS() (int32, bool)  { return t.eos, t.eos != none }
func (t *bpe) VocabSize() int      { return t.vocabSize }
func (t *bpe) Fingerprint() string { return t.sum }

func (t *bpe) Decode(ids []int32) []byte {
	var text []byte
	for _, id := range ids {
		text = append(text, t.bytes[id]...)
	}
	return text
}

func (t *bpe) Encode(dst []int32, text []byte) []int32 {
	s, _ := t.scratch.Get().(*scratch)
	if s == nil {
		s = &scratch{cache: map[string][]int32{}, runes: make([][]rune, len(t.splitters))}
	}
	defer t.scratch.Put(s)
	return t.encodeAdded(dst, s, 0, text)
}

// encodeAdded cuts the added tokens of set i out of text; what is between them goes to the next set.
func (t *bpe) encodeAdded(dst []int32, s *scratch, i int, text []byte) []int32 {
	if i == len(t.added) {
		return t.split(dst, s, 0, text)
	}
	for len(text) > 0 {
		start, token := t.added[i].find(text)
		dst = t.encodeAdded(dst, s, i+1, text[:start])
		if token == nil {
			break
		}
		dst = append(dst, token.id)
		text = text[start+len(token.content):]
	}
	return dst
}

// encodePiece appends the ids of what the splitters leave whole.
func (t *bpe) encodePiece(dst []int32, s *scratch, piece []byte) []int32 {
	if ids, ok := s.cache[string(piece)]; ok {
		return append(dst, ids...)
	}
	start := len(dst)
	if id, ok := t.whole[string(piece)]; ok {
		dst = append(dst, id)
	} else {
		dst = t.merge(dst, s, piece)
	}
	if len(piece) <= maxCachedBytes && len(s.cache) < maxCachedPieces {
		s.cache[string(piece)] = append([]int32(nil), dst[start:]...)
	}
	return dst
}

// symbol is a token of the piece being merged, in a linked list by index.
type symbol struct {
	id         int32
	prev, next int32 // or none
}

// candidate is a pair of neighbours that may be merged. It is out of date once either has changed.
type candidate struct {
	merge
	left int32 // index of the left symbol
}

// merge joins the bytes of piece by rank, leftmost first among equals. A queue keeps a long piece
// (a megabyte of one letter) from costing the square of its length.
func (t *bpe) merge(dst []int32, s *scratch, piece []byte) []int32 {
	symbols := s.symbols[:0]
	lastMissing := false
	for _, c := range piece {
		id := t.byteID[c]
		missing := id == none
		if missing && (t.unkID == none || t.fuseUnk && lastMissing) {
			lastMissing = true
			continue
		}
		if missing {
			id = t.unkID
		}
		lastMissing = missing
		n := int32(len(symbols))
		symbols = append(symbols, symbol{id, n - 1, n + 1})
	}
	if len(symbols) == 0 {
		return dst
	}
	symbols[len(symbols)-1].next = none
	s.symbols, s.queue = symbols, s.queue[:0]
	for i := range symbols[:len(symbols)-1] {
		t.propose(s, int32(i))
	}
	for len(s.queue) > 0 {
		t.join(s, heap.Pop(&s.queue).(candidate))
	}
	for i := int32(0); i != none; i = symbols[i].next {
		dst = append(dst, symbols[i].id)
	}
	return dst
}

// propose queues the pair that starts at symbol left, if it merges.
func (t *bpe) propose(s *scratch, left int32) {
	right := s.symbols[left].next
	if right == none {
		return
	}
	if m, ok := t.merges[pair{s.symbols[left].id, s.symbols[right].id}]; ok {
		heap.Push(&s.queue, candidate{m, left})
	}
}

// join merges a candidate that is still in date and proposes its new neighbours.
func (t *bpe) join(s *scratch, c candidate) {
	left := &s.symbols[c.left]
	if left.id == none || left.next == none {
		return
	}
	right := &s.symbols[left.next]
	if m, ok := t.merges[pair{left.id, right.id}]; !ok || m.id != c.id {
		return
	}
	left.id, left.next = c.id, right.next
	right.id = none
	if right.next != none {
		s.symbols[right.next].prev = c.left
	}
	t.propose(s, c.left)
	if left.prev != none {
		t.propose(s, left.prev)
	}
}

// mergeQueue is a heap of candidates, lowest rank and then leftmost at the top.
type mergeQueue []candidate

func (q mergeQueue) Len() int { return len(q) }
func (q mergeQueue) Less(i, j int) bool {
	return q[i].rank < q[j].rank || q[i].rank == q[j].rank && q[i].left < q[j].left
}
func (q mergeQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *mergeQueue) Push(c any)   { *q = append(*q, c.(candidate)) }
func (q *mergeQueue) Pop() any {
	c := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return c
}
