package comm

import "testing"

func BenchmarkReduceFloat32(b *testing.B) {
	srcs := [][]byte{make([]byte, 8<<20), make([]byte, 8<<20)}
	b.SetBytes(8 << 20)
	for b.Loop() {
		reduce[float32](Sum, srcs[0], srcs)
	}
}

func BenchmarkReduceBFloat16(b *testing.B) {
	srcs := [][]byte{make([]byte, 8<<20), make([]byte, 8<<20)}
	b.SetBytes(8 << 20)
	for b.Loop() {
		reduceBF16(Sum, srcs[0], srcs)
	}
}
