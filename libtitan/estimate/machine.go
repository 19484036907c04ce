package estimate

import (
	"bytes"
	"embed"
	"encoding/json"
	"io"
	"strings"

	"titan/libtitan/exit"
	"titan/libtitan/manifest"
)

// Machine is a cluster of one kind of GPU, as data: figures of a data sheet, or measured ones. Rates are of one GPU;
// a TFLOP/s is 10^12, a GB/s 10^9 a second.
type Machine struct {
	Name        string  `json:"name"`
	About       string  `json:"about"`         // which card, and whence the figures
	MemoryBytes int64   `json:"memory_bytes"`  // what a process can allocate: without the driver's and NCCL's own
	BF16TFLOPS  float64 `json:"bf16_tflops"`   // peak of dense products, which MFU refers to
	FP8TFLOPS   float64 `json:"fp8_tflops"`    // 0: none
	FP32TFLOPS  float64 `json:"fp32_tflops"`   // of products on float32 values, TF32 where there is that
	SMs         int     `json:"sms"`           // streaming multiprocessors
	ClockGHz    float64 `json:"clock_ghz"`     // of them, under memory-bound work
	MemoryGBps  float64 `json:"memory_gbps"`   // peak of device memory, reads and writes together
	NodeGBps    float64 `json:"node_gbps"`     // to the GPUs of its node, one direction
	NetworkGBps float64 `json:"network_gbps"`  // to other nodes, one direction
	GPUsPerNode int     `json:"gpus_per_node"` // with NodeGBps between any two
	Watts       float64 `json:"watts"`         // that the card may draw
	FullWatts   float64 `json:"full_watts"`    // that its kind draws at the clock that the efficiencies hold for

	AttentionForwardTFLOPS  float64 `json:"attention_forward_tflops"`  // causal, 8192 positions, heads of 128
	AttentionBackwardTFLOPS float64 `json:"attention_backward_tflops"` // the same

	Software Software  `json:"software,omitzero"`
	Measured *Measured `json:"measured,omitempty"`
}

//go:embed hardware/*.json
var embedded embed.FS

// Machines are the known ones, in order of their names.
func Machines() ([]Machine, error) {
	files, err := embedded.ReadDir("hardware")
	if err != nil {
		return nil, err
	}
	var all []Machine
	for _, f := range files {
		text, err := embedded.ReadFile("hardware/" + f.Name())
		if err != nil {
			return nil, err
		}
		m, err := ReadMachine(bytes.NewReader(text))
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// FindMachine is the known machine called name, in any case.
func FindMachine(name string) (Machine, error) {
	all, err := Machines()
	if err != nil {
		return Machine{}, err
	}
	var names []string
	for _, m := range all {
		if strings.EqualFold(m.Name, name) {
			return m, nil
		}
		names = append(names, m.Name)
	}
	if near := manifest.Nearest(name, names); near != "" {
		return Machine{}, exit.Input.Errorf("unknown GPU %q: did you mean %s?", name, near)
	}
	return Machine{}, exit.Input.Errorf("unknown GPU %q: not among %s; describe it with --hardware FILE.json", name, strings.Join(names, ", "))
}

const maxMachineBytes = 1 << 20

// maxFigure is above any figure that a machine has, bytes of memory among them.
const maxFigure = 1e15

// ReadMachine reads one machine's JSON object, strictly.
func ReadMachine(r io.Reader) (Machine, error) {
	var m Machine
	text, err := io.ReadAll(io.LimitReader(r, maxMachineBytes+1))
	if err != nil {
		return m, err
	}
	if len(text) > maxMachineBytes {
		return m, exit.Input.Errorf("hardware: larger than %d MiB", maxMachineBytes>>20)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return m, exit.Input.Errorf("hardware: want one JSON object as meshplan gpus --json prints: %v", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return m, exit.Input.Errorf("hardware: something follows the object")
	}
	return m, m.check()
}

// check refuses figures that no estimate can be made of.
func (m *Machine) check() error {
	if m.Name == "" || len(m.Name) > 80 {
		return exit.Input.Errorf("hardware: name: want 1 to 80 letters")
	}
	for _, f := range []struct {
		name       string
		value, min float64
	}{
		{"bf16_tflops", m.BF16TFLOPS, 1e-6}, {"fp8_tflops", m.FP8TFLOPS, 0}, {"fp32_tflops", m.FP32TFLOPS, 1e-6},
		{"attention_forward_tflops", m.AttentionForwardTFLOPS, 1e-6}, {"attention_backward_tflops", m.AttentionBackwardTFLOPS, 1e-6},
		{"sms", float64(m.SMs), 1}, {"clock_ghz", m.ClockGHz, 1e-3}, {"memory_gbps", m.MemoryGBps, 1e-3}, {"node_gbps", m.NodeGBps, 1e-6}, {"network_gbps", m.NetworkGBps, 1e-6},
		{"gpus_per_node", float64(m.GPUsPerNode), 1}, {"watts", m.Watts, 1}, {"full_watts", m.FullWatts, 1},
		{"memory_bytes", float64(m.MemoryBytes), 1 << 20}, {"software.cp_waits", m.Software.CPWaits, 0}, {"software.microbatches_per_rank", float64(m.Software.MicrobatchesPerRank), 0},
	} {
		if !(f.value >= f.min) || f.value > maxFigure {
			return exit.Input.Errorf("hardware: %s: %v is out of range: it must be %v to %v", f.name, f.value, f.min, maxFigure)
		}
	}
	switch m.Software.Runtime {
	case "", "torchtitan", "titan":
	default:
		return exit.Input.Errorf("hardware: software.runtime %q: want torchtitan or titan", m.Software.Runtime)
	}
	return m.Measured.check()
}
