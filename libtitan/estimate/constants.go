package estimate

// Bytes of a stored parameter: float32 values and gradients, and AdamW's two float32 moments.
const (
	paramBytes     = 4
	gradBytes      = 4
	optimizerBytes = 8
)

// What the loss holds at its peak, bytes a logit.
const (
	// logitsCompiled: the bfloat16 logits and their gradient; what is between them is never stored.
	logitsCompiled = 4
	// logitsSeparate: log-softmax, its gradient and the logits' (4 each), as F.cross_entropy on float32 makes them.
	logitsSeparate = 12
	// logitsFreed: the bfloat16 logits, whose block is free by then but too small for what comes.
	logitsFreed = 2
	// logitsParallel: loss parallel's shifted logits and their exponentials, float32, which no compiler fuses.
	logitsParallel = 8
)

// fragmentation is the share of its blocks that PyTorch's caching allocator cannot use: fitted on peaks of
// expandable segments, published and measured, after all buffers that are known by name.
const fragmentation = 0.03

// Shares of a peak that kernels reach, measured on an H200 at its power cap.
const (
	productEfficiency = 0.74 // bfloat16 products of a step: 734 of 989 TFLOP/s
	float8Efficiency  = 0.70 // float8 products: 1,394 of 1,979 TFLOP/s
	streamEfficiency  = 0.72 // AdamW, clipping, copies: 3.4 to 3.5 of 4.8 TB/s
	copyEfficiency    = 0.88 // a plain copy: 4.24 of 4.8 TB/s
	hot               = 0.92 // of a rate measured alone, in a step that has heated the card: attention 3.84 against 4.2 ms
)

// bytesPerCycle is what an SM moves in a cycle of a kernel that reduces, rotates or casts, apart from waiting for
// memory; fitted: with the copy's rate it comes to 1.6 TB/s on an H200, where such kernels alone run at 0.9 to 2.9.
const bytesPerCycle = 11

// eagerTraffic is how many times a compiled block's bytes an eager one moves; fitted on steps of 8 layers, 274 against 248 ms.
const eagerTraffic = 2.1

// Bytes a value costs to be made float8: read for the largest and again to scale, written (2 + 2 + 1), and put in the
// other order for the other product (1, or 2 where it is gathered in between). Scaled by row, it is read anew for the
// other order.
const float8Cast, float8Turn, float8TurnGathered = 5.0, 1.0, 2.0

// float8CastApart is the bytes where each of these is a kernel of its own: the size of it (read 2, write 2), its largest
// (2), scaled (2, 4), clamped (4, 4), rounded (4, 1), put in the other order (1, 1).
const float8CastApart = 27.0

var float8ByRow = map[string]float64{"tensorwise": 1, "rowwise": 1.5, "rowwise_with_gw_hp": 1.25}

// What fills a kernel.
const (
	productStart  = 6e-6  // seconds in which a product's first and last tiles do not fill the GPU
	attentionRow  = 500.0 // positions: attention at 2,048 reaches 0.88 forward, 0.80 backward of that at 8,192
	narrowHead    = 64.0  // channels: heads of 16 take as long, by cuDNN: 96 of 503 TFLOP/s forward, 85 of 403 backward
	attentionHead = 40.0  // channels: heads of 64 reach 0.78 and 0.83 of heads of 128
)

// Collectives. The first two are shares of a link's rate.
const (
	nodeEfficiency    = 0.82  // NCCL in a node, among many GPUs
	nodeFew           = 0.75  // ranks that few are short of many by: between 2, 270 of 450 GB/s
	networkEfficiency = 0.85  // of the network cards' rate
	collectiveStart   = 30e-6 // seconds, host and first block: 43 to 55 us a small call, partly overlapped
	nodeHop           = 1e-6  // seconds a rank on a ring in a node
	networkHop        = 4e-6  // seconds a node on a ring between nodes
)

// What overlap leaves.
const (
	contention   = 0.30 // of a collective beside products, which wait for each other's SMs; fitted on FSDP over 2 GPUs
	asyncTPHides = 0.30 // of tensor-parallel collectives, in pieces beside products: 829 against 876 tokens/s
)

// fsdpTraffic is the bytes of device memory that FSDP's copies in and out cost a whole parameter each step: gathered
// values laid out (4, twice where they are dropped in between), gradients cast and packed (6).
const fsdpTraffic, fsdpAgain = 10, 4

// mergeTraffic is the bytes a value that putting together two partial results of attention costs: seven eager float32
// kernels forward; adding up the gradients of q, k and v backward comes to the same.
const mergeTraffic = 38

// Bytes of device memory that the loss reads and writes a logit.
const lossCompiledTraffic, lossSeparateTraffic = 8, 34

// optimizerTraffic is the bytes a stored parameter costs: AdamW 28, norm and clipping 12.
const optimizerTraffic = 40

// workspaceBytes is what cuBLAS and the like hold on to.
const workspaceBytes = 96 << 20

// Seconds of the host for a block forward and backward in Python; fitted on debugmodel's step, which it bounds.
const (
	hostCompiled = 2.2e-3
	hostEager    = 3.5e-3
	hostFSDP     = 6e-3 // more, where the block is an FSDP unit with ranks to talk to
)
