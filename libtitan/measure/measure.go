// Package measure finds what this machine computes and moves in a second, with the kernels and collectives that
// training runs on, and describes it as an [estimate.Machine] with all that was measured. Start from [Machine].
//
// The host and a GPU are measured alike: a [device] makes works, which are timed one kind after the other; a rate is of
// the works together that a step has together. What is measured is that of a machine at work: each work is repeated for
// tens of milliseconds.
package measure

import (
	"context"
	"log/slog"
	"math"

	"titan/libtitan/comm"
	"titan/libtitan/device/cpu"
	"titan/libtitan/dtype"
	"titan/libtitan/estimate"
)

// Options choose what is measured.
type Options struct {
	Device string // cpu (or "") or cuda
	CPU    cpu.Options
	Comm   comm.Options
	Log    *slog.Logger
}

// work is one call of a kernel on memory of its own.
type work func() error

// device is what is measured.
type device interface {
	describe(m *estimate.Machine) error
	sizes() sizes
	// products are y = x wᵀ and both its gradients.
	products(t dtype.DType, s product) ([]work, error)
	attention(t dtype.DType, s attention) (forward, backward work, err error)
	// layer is what a layer does beside products and attention, forward and backward.
	layer(t dtype.DType, s layer) ([]work, error)
	loss(t dtype.DType, rows, vocab int) ([]work, error)
	// update is AdamW on n parameters.
	update(n int) ([]work, error)
	copies(bytes int) ([]work, error)
	// seconds is how long all works take, one after the other.
	seconds(works ...work) (float64, error)
	// release frees what works were made with.
	release() error
}

// sizes are what a device is measured at.
type sizes struct {
	types     []dtype.DType
	products  []product
	attention []attention
	layer     layer
	rows      int // of the loss
	vocab     int
	params    int // of the update
	copy      int // bytes
}

type product struct{ tokens, in, out int }

type attention struct{ rows, seqLen, heads, headDim int }

type layer struct{ tokens, dim, ffn, heads int }

// Machine measures the machine that this process runs on. On a GPU with a launcher's variables it is one rank of many,
// and all measure their collectives together; rank 0's answer is the one to keep.
func Machine(ctx context.Context, o Options) (*estimate.Machine, error) {
	if o.Device == "cuda" {
		return gpuMachine(ctx, o)
	}
	h, err := newHost(o.CPU)
	if err != nil {
		return nil, err
	}
	m, err := compute(ctx, h, o.Log)
	if err != nil {
		return nil, err
	}
	m.Measured.Shared = true
	m.Measured.Collectives, err = localCollectives(ctx, o.Comm)
	link(m)
	return m, err
}

// link puts the best all-gather, by the bytes that a rank receives, where a link's rate stands.
func link(m *estimate.Machine) {
	for _, c := range m.Measured.Collectives {
		if c.Name == "all_gather" {
			m.NodeGBps = max(m.NodeGBps, digits(float64(c.Bytes)*float64(c.Ranks-1)/float64(c.Ranks)/c.Seconds/1e9))
		}
	}
}

// compute measures all that one rank does alone.
func compute(ctx context.Context, d device, log *slog.Logger) (*estimate.Machine, error) {
	m := &estimate.Machine{Watts: 1, FullWatts: 1, NodeGBps: 1e-3, NetworkGBps: 1, GPUsPerNode: 1, Measured: &estimate.Measured{}}
	m.Software.Runtime = "titan"
	s := d.sizes()
	for _, part := range []struct {
		what string
		do   func(m *estimate.Measured) error
	}{
		{"matrix products", func(m *estimate.Measured) error { return measureProducts(ctx, d, s, m) }},
		{"attention", func(m *estimate.Measured) error { return measureAttention(ctx, d, s, m) }},
		{"kernels that move memory", func(m *estimate.Measured) error { return measureKernels(ctx, d, s, m) }},
	} {
		log.Info("measuring " + part.what)
		if err := part.do(m.Measured); err != nil {
			return nil, err
		}
	}
	peaks(m)
	return m, d.describe(m)
}

// timed makes works, times them and frees their memory.
func timed(ctx context.Context, d device, make func() ([]work, error)) (float64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	works, err := make()
	if err != nil {
		return 0, err
	}
	s, err := d.seconds(works...)
	if free := d.release(); err == nil {
		err = free
	}
	return s, err
}

func measureProducts(ctx context.Context, d device, s sizes, m *estimate.Measured) error {
	for _, t := range s.types {
		for _, p := range s.products {
			took, err := timed(ctx, d, func() ([]work, error) { return d.products(t, p) })
			if err != nil {
				return err
			}
			flops := 6 * float64(p.tokens) * float64(p.in) * float64(p.out)
			m.Products = append(m.Products, estimate.ProductRate{Type: t.String(), Tokens: p.tokens, In: p.in, Out: p.out, TFLOPS: digits(flops / took / 1e12)})
		}
	}
	return nil
}

func measureAttention(ctx context.Context, d device, s sizes, m *estimate.Measured) error {
	for _, t := range s.types {
		for _, a := range s.attention {
			var took [2]float64
			for i := range took {
				var err error
				if took[i], err = timed(ctx, d, func() ([]work, error) {
					forward, backward, err := d.attention(t, a)
					return []work{forward, backward}[i : i+1], err
				}); err != nil {
					return err
				}
			}
			flops := 2 * float64(a.rows) * float64(a.seqLen) * float64(a.seqLen) * float64(a.heads*a.headDim)
			m.Attention = append(m.Attention, estimate.AttentionRate{Type: t.String(), SeqLen: a.seqLen, HeadDim: a.headDim,
				ForwardTFLOPS: digits(flops / took[0] / 1e12), BackwardTFLOPS: digits(2.5 * flops / took[1] / 1e12)})
		}
	}
	return nil
}

func measureKernels(ctx context.Context, d device, s sizes, m *estimate.Measured) error {
	type kernel struct {
		name  string
		t     dtype.DType
		bytes float64 // each value that a fused kernel would read or write, once
		make  func() ([]work, error)
	}
	list := []kernel{
		{"copy", dtype.Float32, 2 * float64(s.copy), func() ([]work, error) { return d.copies(s.copy) }},
		{"update", dtype.Float32, 28 * float64(s.params), func() ([]work, error) { return d.update(s.params) }},
	}
	for _, t := range s.types {
		// forward 9 values a channel of the stream, 2 of queries and keys, 3 of the gated unit; backward 8, 2, 5 and 5 of
		// the gathered stream: as estimate counts them
		perToken := float64(30*s.layer.dim + 8*s.layer.ffn)
		list = append(list,
			kernel{"layer", t, float64(t.Size()) * float64(s.layer.tokens) * perToken, func() ([]work, error) { return d.layer(t, s.layer) }},
			kernel{"loss", t, 2 * float64(t.Size()) * float64(s.rows) * float64(s.vocab), func() ([]work, error) { return d.loss(t, s.rows, s.vocab) }})
	}
	for _, k := range list {
		took, err := timed(ctx, d, k.make)
		if err != nil {
			return err
		}
		m.Kernels = append(m.Kernels, estimate.KernelRate{Name: k.name, Type: k.t.String(), GBps: digits(k.bytes / took / 1e9)})
	}
	return nil
}

// peaks puts the best that was measured where a data sheet's figures stand.
func peaks(m *estimate.Machine) {
	for _, r := range m.Measured.Products {
		switch r.Type {
		case "float32":
			m.FP32TFLOPS = max(m.FP32TFLOPS, r.TFLOPS)
		case "bfloat16":
			m.BF16TFLOPS = max(m.BF16TFLOPS, r.TFLOPS)
		case "float8":
			m.FP8TFLOPS = max(m.FP8TFLOPS, r.TFLOPS)
		}
	}
	for _, r := range m.Measured.Attention {
		m.AttentionForwardTFLOPS = max(m.AttentionForwardTFLOPS, r.ForwardTFLOPS)
		m.AttentionBackwardTFLOPS = max(m.AttentionBackwardTFLOPS, r.BackwardTFLOPS)
	}
	for _, r := range m.Measured.Kernels {
		m.MemoryGBps = max(m.MemoryGBps, r.GBps)
	}
}

// digits rounds to four digits: no measurement has more.
func digits(x float64) float64 {
	scale := math.Pow(10, 3-math.Floor(math.Log10(x)))
	return math.Round(x*scale) / scale
}
