//go:build !amd64

package rng

func (s stream) fastWords([]uint32, uint64) int                  { return 0 }
func (d *sampler) fastValues([]float32, []uint32, *segments) int { return 0 }
