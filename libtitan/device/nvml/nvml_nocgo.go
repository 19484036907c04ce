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

// Device is never made in this build.
type Device struct{}

// Find has nothing to look in.
func (*Library) Find(string) (*Device, error) { return nil, missing("not built in") }

// Sample has nothing to read.
func (*Library) Sample() ([]GPU, error) { return nil, missing("not built in") }

// Read has nothing to read.
func (*Device) Read() (GPU, error) { return GPU{}, missing("not built in") }

// Memory has nothing to read.
func (*Device) Memory() (GPU, error) { return GPU{}, missing("not built in") }
