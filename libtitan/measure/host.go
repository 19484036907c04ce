package measure

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"

	"titan/libtitan/device/cpu"
	"titan/libtitan/dtype"
	"titan/libtitan/estimate"
)

// host is the CPU.
type host struct {
	e       *cpu.Engine
	threads int
}

func newHost(o cpu.Options) (*host, error) {
	e, err := cpu.New(o)
	return &host{e, o.Threads}, err
}

func (h *host) sizes() sizes {
	return sizes{
		types:     []dtype.DType{dtype.Float32, dtype.BFloat16},
		products:  []product{{128, 32, 32}, {512, 64, 64}, {512, 64, 192}, {512, 128, 128}, {512, 128, 384}, {512, 256, 256}, {1024, 256, 768}, {1024, 512, 1536}, {1024, 1024, 2048}},
		attention: []attention{{4, 64, 4, 16}, {2, 256, 4, 16}, {1, 2048, 4, 16}, {4, 64, 4, 32}, {2, 256, 4, 32}, {1, 2048, 4, 32}, {2, 256, 4, 64}, {1, 2048, 4, 64}, {1, 2048, 4, 128}},
		layer:     layer{1024, 256, 768, 8},
		rows:      1024, vocab: 2048, params: 4 << 20, copy: 64 << 20,
	}
}

// describe fills in what the system says of itself.
func (h *host) describe(m *estimate.Machine) error {
	m.Name, m.SMs, m.ClockGHz = "cpu", runtime.GOMAXPROCS(0), 1
	m.GPUsPerNode = manyRanks
	m.About = fmt.Sprintf("%s, %d cores, %s, as measured: ranks of one process share it", field("/proc/cpuinfo", "model name"), m.SMs, h.e.Name())
	var kib int64
	if _, err := fmt.Sscan(field("/proc/meminfo", "MemTotal"), &kib); err != nil || kib == 0 {
		return fmt.Errorf("measure: /proc/meminfo: no MemTotal")
	}
	m.MemoryBytes = kib << 10
	return nil
}

// manyRanks is the number of ranks of a process that an estimate takes for neighbours.
const manyRanks = 1 << 10

// field is the value of a line "name: value" of a file of /proc.
func field(path, name string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// least is how long works are repeated, leastTimes how often at least.
const least, leastTimes = 60 * time.Millisecond, 5

// clock is the seconds since some moment. One thread is timed by what this process computes: what else the machine does
// is not in it then.
func (h *host) clock() float64 {
	var use syscall.Rusage
	if h.threads != 1 || syscall.Getrusage(syscall.RUSAGE_SELF, &use) != nil {
		return float64(time.Now().UnixNano()) / 1e9
	}
	return float64(use.Utime.Nano()+use.Stime.Nano()) / 1e9
}

// seconds is the best of several rounds: what else the machine does only ever takes time away.
func (h *host) seconds(works ...work) (float64, error) {
	best, began := math.Inf(1), time.Now()
	for n := 0; n < leastTimes || time.Since(began) < least; n++ {
		start := h.clock()
		for _, w := range works {
			if err := w(); err != nil {
				return 0, err
			}
		}
		if took := h.clock() - start; took > 0 {
			best = min(best, took)
		}
	}
	return best, nil
}

func (h *host) release() error { return nil }

// floats is n numbers in [-1, 1).
func floats(n int) []float32 {
	x := make([]float32, n)
	state := uint32(n)
	for i := range x {
		state = state*1664525 + 1013904223
		x[i] = float32(int32(state)) / (1 << 31)
	}
	return x
}

// halves is n bfloat16 numbers in [-1, 1).
func halves(n int) []uint16 {
	x := make([]uint16, n)
	for i, v := range floats(n) {
		x[i] = uint16(math.Float32bits(v) >> 16)
	}
	return x
}

// nothing makes a work of a call that cannot fail.
func nothing(f func()) work {
	return func() error { f(); return nil }
}

func (h *host) products(t dtype.DType, s product) ([]work, error) {
	T, in, out, e, dw := s.tokens, s.in, s.out, h.e, floats(s.in*s.out)
	if t == dtype.BFloat16 {
		x, w, y := halves(T*in), halves(in*out), halves(T*out)
		return []work{
			nothing(func() { e.GemmBF16Out(false, true, T, out, in, x, w, y, in, in, out) }),
			nothing(func() { e.GemmBF16Out(false, false, T, in, out, y, w, x, out, in, in) }),
			nothing(func() { e.GemmBF16(true, false, out, in, T, y, x, dw, out, in, in, false) }),
		}, nil
	}
	x, w, y := floats(T*in), floats(in*out), floats(T*out)
	dx := floats(T * in)
	return []work{
		nothing(func() { e.Gemm(false, true, T, out, in, x, w, y, in, in, out, false) }),
		nothing(func() { e.Gemm(false, false, T, in, out, y, w, dx, out, in, in, false) }),
		nothing(func() { e.Gemm(true, false, out, in, T, y, x, dw, out, in, in, false) }),
	}, nil
}

func (h *host) attention(t dtype.DType, a attention) (forward, backward work, err error) {
	n, e := a.rows*a.seqLen*a.heads*a.headDim, h.e
	s := cpu.AttnShape{Batch: a.rows, SeqQ: a.seqLen, SeqK: a.seqLen, Heads: a.heads, KVHeads: a.heads, HeadDim: a.headDim, Scale: float32(1 / math.Sqrt(float64(a.headDim)))}
	lse := floats(a.rows * a.heads * a.seqLen)
	if t == dtype.BFloat16 {
		q, k, v, o, do, dq, dk, dv := halves(n), halves(n), halves(n), halves(n), halves(n), halves(n), halves(n), halves(n)
		e.AttentionBF16(o, lse, q, k, v, s)
		return nothing(func() { e.AttentionBF16(o, lse, q, k, v, s) }), nothing(func() { e.AttentionBackwardBF16(dq, dk, dv, do, q, k, v, o, lse, s) }), nil
	}
	q, k, v, o, do, dq, dk, dv := floats(n), floats(n), floats(n), floats(n), floats(n), floats(n), floats(n), floats(n)
	e.Attention(o, lse, q, k, v, s)
	return nothing(func() { e.Attention(o, lse, q, k, v, s) }), nothing(func() { e.AttentionBackward(dq, dk, dv, do, q, k, v, o, lse, s) }), nil
}

func (h *host) layer(t dtype.DType, l layer) ([]work, error) {
	T, D, F, e := l.tokens, l.dim, l.ffn, h.e
	rstd, dw, angles := floats(T), floats(D), floats(T*D/l.heads/2)
	if t == dtype.BFloat16 {
		x, y, z, g, w := halves(T*D), halves(T*D), halves(T*D), halves(T*D), halves(D)
		a, b, u, da, db := halves(T*F), halves(T*F), halves(T*F), halves(T*F), halves(T*F)
		norm := nothing(func() { e.RMSNormBF16(y, rstd, x, w, T, D, 1e-5) })
		normBack := nothing(func() { e.RMSNormBackwardBF16(z, dw, g, x, w, rstd, T, D, false) })
		rope := nothing(func() { e.RopeBF16(y, x, angles, angles, 1, T, l.heads, D/l.heads, false) })
		add := nothing(func() { e.AddBF16(y, x, z) })
		gate := nothing(func() { e.SwiGLUBF16(u, a, b) })
		gateBack := nothing(func() { e.SwiGLUBackwardBF16(da, db, u, a, b) })
		return once(norm, normBack, rope, add, nothing(func() { e.AddBF16(y, x, z, g) }), gate, gateBack), nil
	}
	x, y, z, g, w := floats(T*D), floats(T*D), floats(T*D), floats(T*D), floats(D)
	a, b, u, da, db := floats(T*F), floats(T*F), floats(T*F), floats(T*F), floats(T*F)
	norm := nothing(func() { e.RMSNorm(y, rstd, x, w, T, D, 1e-5) })
	normBack := nothing(func() { e.RMSNormBackward(z, dw, g, x, w, rstd, T, D, false) })
	rope := nothing(func() { e.Rope(y, x, angles, angles, 1, T, l.heads, D/l.heads, false) })
	add := nothing(func() { e.Add(y, x, z) })
	gate := nothing(func() { e.SwiGLU(u, a, b) })
	gateBack := nothing(func() { e.SwiGLUBackward(da, db, u, a, b) })
	return once(norm, normBack, rope, add, nothing(func() { e.Add(y, x, z, g) }), gate, gateBack), nil
}

// once is the kernels of one layer forward and backward: two norms, four rotations, five sums of two and one of three.
func once(norm, normBack, rope, add, add3, gate, gateBack work) []work {
	return []work{norm, rope, rope, add, norm, gate, add, add, gateBack, add, normBack, add, rope, rope, add3, normBack}
}

func (h *host) loss(t dtype.DType, rows, vocab int) ([]work, error) {
	e, perRow, lse, labels := h.e, floats(rows), floats(rows), make([]int32, rows)
	if t == dtype.BFloat16 {
		logits, grad := halves(rows*vocab), halves(rows*vocab)
		return []work{
			func() error { _, err := e.CrossEntropyBF16(perRow, lse, logits, labels, rows, vocab); return err },
			nothing(func() { e.CrossEntropyBackwardBF16(grad, logits, labels, lse, 1, rows, vocab) }),
		}, nil
	}
	logits, grad := floats(rows*vocab), floats(rows*vocab)
	return []work{
		func() error { _, err := e.CrossEntropy(perRow, lse, logits, labels, rows, vocab); return err },
		nothing(func() { e.CrossEntropyBackward(grad, logits, labels, lse, 1, rows, vocab) }),
	}, nil
}

func (h *host) update(n int) ([]work, error) {
	p, g, m, v := floats(n), floats(n), floats(n), floats(n)
	for i := range v {
		v[i] *= v[i]
	}
	o := cpu.AdamW{LR: 1e-5, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, C1: 1, C2: 1, GradScale: 1}
	return []work{nothing(func() { h.e.AdamW(p, g, m, v, o) })}, nil
}

func (h *host) copies(bytes int) ([]work, error) {
	x, y := floats(bytes/4), floats(bytes/4)
	return []work{nothing(func() { h.e.For(len(x), 1<<16, func(lo, hi int) { copy(y[lo:hi], x[lo:hi]) }) })}, nil
}
