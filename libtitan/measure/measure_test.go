package measure

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/comm"
	"titan/libtitan/comm/local"
	"titan/libtitan/device/cpu"
	"titan/libtitan/device/cuda"
	"titan/libtitan/estimate"
)

// small is the host, measured at sizes that take no time.
type small struct{ *host }

func (s small) sizes() sizes {
	all := s.host.sizes()
	all.products, all.attention = []product{{32, 16, 48}, {16, 16, 16}}, []attention{{1, 32, 2, 16}}
	all.layer, all.rows, all.vocab, all.params, all.copy = layer{16, 32, 48, 2}, 16, 64, 1000, 1<<12
	return all
}

// What is measured is a machine that estimate takes, every rate of it above 0.
func TestHost(t *testing.T) {
	h, err := newHost(cpu.Options{Threads: 1})
	require.NoError(t, err)
	m, err := compute(t.Context(), small{h}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	m.Measured.Shared = true
	require.NoError(t, local.Run(t.Context(), 2, func(ctx context.Context, c comm.Comm) error {
		list, err := hostCollectives(ctx, c)
		if c.Rank() == 0 {
			m.Measured.Collectives = list
		}
		return err
	}))
	link(m)
	require.Len(t, m.Measured.Products, 4)
	require.Len(t, m.Measured.Attention, 2)
	require.Len(t, m.Measured.Kernels, 6)
	require.Len(t, m.Measured.Collectives, 16)
	text, err := json.Marshal(m)
	require.NoError(t, err)
	read, err := estimate.ReadMachine(bytes.NewReader(text))
	require.NoError(t, err)
	require.Equal(t, *m, read)
}

// smallGPU is a GPU, measured at sizes that take no time.
type smallGPU struct{ *gpu }

func (s smallGPU) sizes() sizes {
	all := s.gpu.sizes()
	all.products, all.attention = []product{{256, 256, 512}}, []attention{{1, 256, 2, 64}}
	all.layer, all.rows, all.vocab, all.params, all.copy = layer{256, 256, 512, 4}, 256, 1024, 1<<16, 1<<20
	return all
}

func TestGPU(t *testing.T) {
	d, err := cuda.Open(0)
	if err != nil {
		t.Skipf("SKIPPED: needs a GPU, make gpu runs it: %v", err)
	}
	leave, err := d.Enter()
	require.NoError(t, err)
	defer leave()
	s, err := d.NewStream(false)
	require.NoError(t, err)
	e, err := cuda.NewEngine(d, s, cuda.Options{})
	require.NoError(t, err)
	g := &gpu{e: e}
	g.free, _, err = d.MemInfo()
	require.NoError(t, err)
	m, err := compute(t.Context(), smallGPU{g}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	text, err := json.Marshal(m)
	require.NoError(t, err)
	_, err = estimate.ReadMachine(bytes.NewReader(text))
	require.NoError(t, err)
	require.NoError(t, e.Close())
}

func TestBaseOf(t *testing.T) {
	m, known := baseOf("NVIDIA H200")
	require.True(t, known)
	require.Equal(t, "h200", m.Name)
	_, known = baseOf("NVIDIA GeForce")
	require.False(t, known)
}

func TestDigits(t *testing.T) {
	for x, want := range map[float64]float64{1234.56: 1235, 0.00123456: 0.001235, 9.9999e9: 1e10, 7: 7} {
		require.InEpsilon(t, want, digits(x), 1e-12)
	}
}
