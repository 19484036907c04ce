package train

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// record is a step in the metrics file, numbers in full precision.
type record struct {
	Step           int                `json:"step"`
	Loss           float64            `json:"loss"`      // mean over the step's labels
	GradNorm       float64            `json:"grad_norm"` // before clipping
	LR             float64            `json:"lr"`        // used in the step
	BatchHash      string             `json:"batch_hash"`
	Tokens         int                `json:"tokens"`       // positions computed
	ValidTokens    int                `json:"valid_tokens"` // of them, those with a label
	TokensSeen     int64              `json:"ntokens_seen"` // labels since the run's first step
	DataSeconds    float64            `json:"data_seconds"`
	StepSeconds    float64            `json:"step_seconds"`
	TPS            float64            `json:"tps"`                       // tokens a second a rank
	StalledSeconds float64            `json:"stalled_seconds,omitempty"` // that saves kept training waiting since the step before
	MemoryBytes    int64              `json:"memory_bytes,omitempty"`    // on the cpu, the most that the process has held
	GradNorms      map[string]float64 `json:"grad_norms,omitempty"`
}

// validated is a validation in the metrics file.
type validated struct {
	Step   int     `json:"step"`
	Loss   float64 `json:"validation_loss"`
	Tokens int64   `json:"validation_tokens"`
}

// report tells people and files how the run goes. Only rank 0 calls it.
type report struct {
	*run
	flops   float64 // a token
	ranks   float64
	since   span
	tb      *TensorBoard  // nil: none
	metrics *json.Encoder // nil: none
	lost    error         // the first write that failed; nil: none has
	seen    func(record)  // tests look on; nil: nobody does
}

// span is what was done since the last console line, which gives its averages.
type span struct {
	began           time.Time
	steps, tokens   int
	waited, stalled float64 // seconds, for data and for saves
}

func newReport(r *run) (*report, error) {
	p := &report{run: r, flops: float64(r.job.Manifest.Model.FlopsPerToken), ranks: float64(r.job.NumRanks()), since: span{began: time.Now()}}
	if r.Metrics != nil {
		p.metrics = json.NewEncoder(r.Metrics)
	}
	if r.TensorBoard == "" {
		return p, nil
	}
	var err error
	p.tb, err = NewTensorBoard(r.TensorBoard, time.Now)
	return p, err
}

func (p *report) close() error {
	if p.tb == nil {
		return nil
	}
	return p.tb.Close()
}

// step records one step, and prints it when its turn has come.
func (p *report) step(s record) {
	s.TPS = float64(s.Tokens) / s.StepSeconds / p.ranks
	if p.metrics != nil && p.gpu == nil {
		s.MemoryBytes, _ = peakMemory()
	}
	p.metric(s)
	p.since.steps++
	p.since.tokens += s.Tokens
	p.since.waited += s.DataSeconds
	p.since.stalled += s.StalledSeconds
	if p.seen != nil {
		p.seen(s)
	}
	if p.Progress != nil {
		p.Progress(1)
	}
	if s.ValidTokens == 0 {
		p.Log.Warn(fmt.Sprintf("step %d: no valid tokens: every label is ignored; gradients are zero, weight decay still applies", s.Step))
	}
	begun, last := s.Step == p.left.Step+1, s.Step == p.job.Manifest.Training.Steps
	if begun {
		p.started()
	}
	if begun || last || s.Step%p.LogFreq == 0 {
		p.line(s)
	}
}

// line prints a step with the averages since the last line, and gives TensorBoard torchtitan's scalars.
func (p *report) line(s record) {
	n := p.since
	seconds, steps := time.Since(n.began).Seconds(), float64(n.steps)
	tps := float64(n.tokens) / seconds / p.ranks
	tflops := p.flops * tps / 1e12
	bytes, share := p.memory()
	stalls := ""
	if n.stalled > 0 {
		stalls = fmt.Sprintf("  stalled: %.2fs", n.stalled)
	}
	fmt.Fprintf(p.Console, "step: %2d  loss: %8.5f  grad_norm: %7.4f  memory: %5.2fGiB(%.2f%%)  tps: %s  tflops: %s  mfu: %s%s\n",
		s.Step, s.Loss, s.GradNorm, gib(bytes), 100*share, commas(tps, 0), commas(tflops, 2), p.mfu(tflops), stalls)
	p.board(s.Step, []scalar{
		{"loss_metrics/global_avg_loss", s.Loss},
		{"grad_norm", s.GradNorm},
		{"lr", s.LR},
		{"n_tokens_seen", float64(s.TokensSeen)},
		{"throughput(tps)", tps},
		{"tflops", tflops},
		{"time_metrics/end_to_end(s)", seconds / steps},
		{"time_metrics/data_loading(s)", n.waited / steps},
		{"time_metrics/data_loading(%)", 100 * n.waited / seconds},
		{"memory/max_active(GiB)", gib(bytes)},
		{"memory/max_active(%)", 100 * share},
	})
	p.since = span{began: time.Now()}
}

// validation reports the loss on held-out data after a step. The next line counts training alone.
func (p *report) validation(step int, loss float64, tokens int64) {
	fmt.Fprintf(p.Console, "validate step: %2d  loss: %7.4f  tokens: %d\n", step, loss, tokens)
	p.since = span{began: time.Now()}
	p.metric(validated{step, loss, tokens})
	p.board(step, []scalar{{"validation_metrics/global_avg_loss", loss}})
}

// metric writes a line of the metrics file.
func (p *report) metric(v any) {
	if p.metrics == nil {
		return
	}
	if err := p.metrics.Encode(v); err != nil {
		p.lost = first(p.lost, fmt.Errorf("metrics: %w", err))
	}
}

// scalar is a value of TensorBoard's.
type scalar struct {
	tag   string
	value float64
}

func (p *report) board(step int, scalars []scalar) {
	if p.tb == nil {
		return
	}
	for _, v := range scalars {
		if err := p.tb.Scalar(v.tag, int64(step), v.value); err != nil {
			p.lost = first(p.lost, fmt.Errorf("tensorboard: %w", err))
		}
	}
}

// started ends the account of the start.
func (p *report) started() {
	p.startup.done("first step")
	if p.gpu != nil {
		p.startup.kernels(p.gpu.Compiled())
	}
}

// memory is that of the process, or of the GPU it computes on.
func (r *run) memory() (bytes int64, share float64) {
	if r.gpu != nil {
		return r.gauge.read()
	}
	return peakMemory()
}

// mfu is the share of what the device can do at most.
func (r *run) mfu(tflops float64) string {
	if r.gpu == nil || peakFLOPS(r.gpu.Name) == 0 {
		return "unknown"
	}
	return fmt.Sprintf("%.2f%%", 100*tflops*1e12/peakFLOPS(r.gpu.Name))
}

// commas prints x with its thousands apart.
func commas(x float64, decimals int) string {
	s := fmt.Sprintf("%.*f", decimals, x)
	whole, frac, _ := strings.Cut(s, ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if decimals > 0 {
		return whole + "." + frac
	}
	return whole
}
