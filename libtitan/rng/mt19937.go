package rng

const (
	mtWords  = 624 // 32-bit words of state
	mtMiddle = 397
)

// twister is the Mersenne Twister MT19937 (Matsumoto and Nishimura, 1998) as PyTorch's CPU generator seeds it.
type twister struct {
	state [mtWords]uint32
	next  int // the word to temper next; mtWords: the state is used up
}

// newTwister takes the low 32 bits of seed, as torch.manual_seed does.
func newTwister(seed uint64) *twister {
	t := &twister{next: mtWords}
	t.state[0] = uint32(seed)
	for i := 1; i < mtWords; i++ {
		prev := t.state[i-1]
		t.state[i] = 1812433253*(prev^prev>>30) + uint32(i)
	}
	return t
}

// Uint32 is the next draw.
func (t *twister) Uint32() uint32 {
	if t.next == mtWords {
		t.twist()
	}
	y := t.state[t.next]
	t.next++
	y ^= y >> 11
	y ^= y << 7 & 0x9d2c5680
	y ^= y << 15 & 0xefc60000
	return y ^ y>>18
}

// skip passes over n draws.
func (t *twister) skip(n int64) {
	for n > int64(mtWords-t.next) {
		n -= int64(mtWords - t.next)
		t.twist()
	}
	t.next += int(n)
}

// twist makes the next 624 words.
func (t *twister) twist() {
	s := &t.state
	mix := func(hi, lo uint32) uint32 { // the high bit of one word and the rest of the next, times the matrix A
		y := hi&0x80000000 | lo&0x7fffffff
		return y>>1 ^ -(y&1)&0x9908b0df
	}
	for i := range mtWords - mtMiddle {
		s[i] = s[i+mtMiddle] ^ mix(s[i], s[i+1])
	}
	for i := mtWords - mtMiddle; i < mtWords-1; i++ {
		s[i] = s[i+mtMiddle-mtWords] ^ mix(s[i], s[i+1])
	}
	s[mtWords-1] = s[mtMiddle-1] ^ mix(s[mtWords-1], s[0])
	t.next = 0
}
