// Package dtype holds the element types of tensors: their names (PyTorch's), their sizes,
// and the rounding of the narrow floats. [Parse] turns a name into a [DType].
package dtype

import "fmt"

// DType is the type of a tensor's elements. The zero value is Invalid.
type DType uint8

// The element types that checkpoints hold. Only Float32, Float64, BFloat16 and Int32 are computed with.
const (
	Invalid DType = iota
	Float32
	Float64
	Float16
	BFloat16
	Float8E4M3FN
	Float8E5M2
	Float8E4M3FNUZ
	Float8E5M2FNUZ
	Float8E8M0FNU
	Float4E2M1FNX2
	Int64
	Int32
	Int16
	Int8
	UInt64
	UInt32
	UInt16
	UInt8
	Bool
	Complex32
	Complex64
	Complex128
)

type info struct {
	name        string // torch's name
	safetensors string // "" where the format has none
	size        int    // bytes an element
	float       bool
}

var infos = [...]info{
	Invalid:        {"invalid", "", 0, false},
	Float32:        {"float32", "F32", 4, true},
	Float64:        {"float64", "F64", 8, true},
	Float16:        {"float16", "F16", 2, true},
	BFloat16:       {"bfloat16", "BF16", 2, true},
	Float8E4M3FN:   {"float8_e4m3fn", "F8_E4M3", 1, true},
	Float8E5M2:     {"float8_e5m2", "F8_E5M2", 1, true},
	Float8E4M3FNUZ: {"float8_e4m3fnuz", "F8_E4M3FNUZ", 1, true},
	Float8E5M2FNUZ: {"float8_e5m2fnuz", "F8_E5M2FNUZ", 1, true},
	Float8E8M0FNU:  {"float8_e8m0fnu", "F8_E8M0", 1, true},
	Float4E2M1FNX2: {"float4_e2m1fn_x2", "", 1, true}, // two values a byte; shapes count bytes
	Int64:          {"int64", "I64", 8, false},
	Int32:          {"int32", "I32", 4, false},
	Int16:          {"int16", "I16", 2, false},
	Int8:           {"int8", "I8", 1, false},
	UInt64:         {"uint64", "U64", 8, false},
	UInt32:         {"uint32", "U32", 4, false},
	UInt16:         {"uint16", "U16", 2, false},
	UInt8:          {"uint8", "U8", 1, false},
	Bool:           {"bool", "BOOL", 1, false},
	Complex32:      {"complex32", "", 4, false},
	Complex64:      {"complex64", "C64", 8, false},
	Complex128:     {"complex128", "", 16, false},
}

// String is PyTorch's name of d without "torch.": float32, bfloat16, float8_e4m3fn.
func (d DType) String() string {
	if int(d) < len(infos) {
		return infos[d].name
	}
	return fmt.Sprintf("dtype(%d)", uint8(d))
}

// Size is the number of bytes an element takes; 0 for Invalid.
func (d DType) Size() int { return infos[d].size }

// IsFloat reports whether d is a real floating-point type, the kind that a cast may narrow.
func (d DType) IsFloat() bool { return infos[d].float }

// Safetensors is d's name in a safetensors header, "" where the format has none.
func (d DType) Safetensors() string { return infos[d].safetensors }

// Parse finds the type with PyTorch's name, or one of the short forms bf16, fp32, f32, fp16, fp64.
func Parse(name string) (DType, error) {
	switch name {
	case "bf16":
		return BFloat16, nil
	case "fp32", "f32":
		return Float32, nil
	case "fp16", "f16":
		return Float16, nil
	case "fp64", "f64":
		return Float64, nil
	}
	for d, i := range infos {
		if d != 0 && i.name == name {
			return DType(d), nil
		}
	}
	return Invalid, fmt.Errorf("unknown dtype %q (float32, bfloat16, ...)", name)
}

// FromSafetensors finds the type by its name in a safetensors header.
func FromSafetensors(name string) (DType, error) {
	for d, i := range infos {
		if i.safetensors == name && name != "" {
			return DType(d), nil
		}
	}
	return Invalid, fmt.Errorf("unknown safetensors dtype %q", name)
}
