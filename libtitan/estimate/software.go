package estimate

// Software is what runs the jobs of a machine, as far as it is no flag of a job.
type Software struct {
	Runtime             string  `json:"runtime,omitempty"`     // torchtitan (or "") or titan: whose kernels and steps
	SeparateLoss        bool    `json:"separate_loss"`         // the loss is not compiled, whatever the job says
	RepeatKV            bool    `json:"repeat_kv"`             // keys and values are repeated for each query head before they go over cp
	Float8Gathers       bool    `json:"float8_gathers"`        // under tp activations are cast before they are gathered, by fused kernels
	CPWaits             float64 `json:"cp_waits"`              // share of (1 - 1/cp) by which attention over cp takes longer than its flops
	MicrobatchesPerRank int     `json:"microbatches_per_rank"` // microbatches for each pipeline rank where none are asked for; 0: free
}

// Runtimes are the known ones, the default first.
func Runtimes() []string { return []string{"torchtitan", "titan"} }

// As says in a line whose time and memory an estimate on m is. planned: its memory is that of a plan which titan-run lays out.
func (m *Machine) As(planned bool) string {
	switch titan := m.Software.Runtime == "titan"; {
	case titan && planned:
		return "as titan-run runs it; --software torchtitan for torchtitan"
	case titan:
		return "time as titan-run runs it, memory as torchtitan takes it"
	case planned:
		return "time as torchtitan runs it, memory as titan-run lays it out"
	}
	return "as torchtitan runs it; --software titan for titan-run"
}

// costs is what software adds to physics. Bytes are of device memory.
type costs struct {
	stream      float64 // share of the peak that AdamW, clipping and copies reach
	perCycle    float64 // bytes that an SM moves in a cycle of a kernel that does more than copy; 0: as many as come
	eager       float64 // times the bytes of a compiled block, where the block is not compiled
	optimizer   float64 // bytes a stored parameter
	loss        float64 // bytes a logit, where the loss is one with its casts
	lossApart   float64 // where it is not
	gathered    float64 // bytes of copies a gathered parameter each step
	again       float64 // more where it is gathered twice
	cast        float64 // bytes of casts a parameter that a rank holds, each microbatch
	accumulates float64 // bytes a gradient that is added to those of the microbatches before
	kernel      float64 // seconds of each kernel of a layer that is no product, in which its first and last blocks do not fill the GPU
	host        float64 // seconds of the host for a block forward and backward
	hostEager   float64 // where it is not compiled
	hostFSDP    float64 // more, where the block is an FSDP unit with ranks to talk to
}

// costsOf is the table of runtimes. PyTorch's figures are fitted, see constants.go. titan's kernels are one an op, which
// move what a compiler's would, at the copy's rate; AdamW reads and writes 28 bytes and the norm 4; the loss reads the
// logits twice and writes their gradient over them; nothing of FSDP is packed, and products add to gradients where they
// are. A step without pp is one CUDA graph.
func costsOf(runtime string) costs {
	if runtime == "titan" {
		return costs{stream: 0.87, eager: 1, optimizer: 32, loss: 6, lossApart: 6, cast: 6, accumulates: 4, kernel: 3e-6}
	}
	return costs{stream: streamEfficiency, perCycle: bytesPerCycle, eager: eagerTraffic, optimizer: optimizerTraffic,
		loss: lossCompiledTraffic, lossApart: lossSeparateTraffic, gathered: fsdpTraffic, again: fsdpAgain, accumulates: 10,
		host: hostCompiled, hostEager: hostEager, hostFSDP: hostFSDP}
}

func (m *Machine) costs() costs { return costsOf(m.Software.Runtime) }

// stream is the seconds in which kernels that do little else move bytes.
func (m *Machine) stream(bytes float64) float64 {
	if rate, ok := m.Measured.kernel("update", "float32"); ok {
		return bytes / rate
	}
	return bytes / (m.MemoryGBps * 1e9 * m.costs().stream)
}

// elementwise is the seconds in which a layer's kernels that do more than copy move bytes.
func (m *Machine) elementwise(bytes float64, kind string) float64 {
	if rate, ok := m.Measured.kernel("layer", kind); ok {
		return bytes / rate
	}
	s := bytes / (m.MemoryGBps * 1e9 * copyEfficiency)
	if per := m.costs().perCycle; per > 0 {
		s += bytes / (float64(m.SMs) * m.ClockGHz * 1e9 * per)
	}
	return s
}

// Kernels of a layer that are no products nor attention: two norms, two rotations, a gated unit and two sums; backward
// theirs, and sums of gradients that meet.
const forwardKernels, backwardKernels = 7, 9

// starts is the seconds in which n kernels start and end. Ranks that share a device are the host's: their kernels are calls.
func (m *Machine) starts(n float64) float64 {
	if m.Shared() {
		return 0
	}
	return n * m.costs().kernel
}

// lossTime is the seconds of the loss of logits values, forward and backward.
func (j *Job) lossTime(m *Machine, logits float64) float64 {
	if rate, ok := m.Measured.kernel("loss", j.Compute); ok {
		return 2 * j.computeBytes() * logits / rate
	}
	bytes := m.costs().lossApart
	if j.compilesLoss(m) && j.Dims.TP == 1 {
		bytes = m.costs().loss
	}
	if j.Dims.TP > 1 && m.Software.Runtime == "titan" {
		bytes += 2 // the largest logit is found first
	}
	return m.stream(logits * bytes)
}
