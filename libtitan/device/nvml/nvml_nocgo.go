//go:build !cgo

package nvml

// Library is never made in this build.
type Library struct{}

// Open says why there is none.
func Open() (*Library, error) {
	return nil, missing("this binary was built without cgo, so it cannot load NVML: build it with CGO_ENABLED=1")
}

// Close does nothing.
func (*Library) Close() {}

// Sample has nothing to read.
func (*Library) Sample() ([]GPU, error) { return nil, missing("not built in") }
