package local

import "unsafe"

// bytesOf is the memory of data.
func bytesOf(data []float64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(data))), 8*len(data))
}
