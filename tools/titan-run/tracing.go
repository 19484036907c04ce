package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/urfave/cli/v2"

	"titan/libtitan/alloc"
	"titan/libtitan/comm"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
	"titan/tools/internal/app"
)

// tracing are the flags of where values lie, and of what is told of it.
func (f *flags) tracing() []cli.Flag {
	return []cli.Flag{
		app.Text(&f.traceMemory, "write what comes and goes in memory to `FILE`, for memprof; -: to stdout, in place of the manifest", "trace-memory"),
		app.AtLeast(&f.options.TraceRank, 0, "rank `N` is what --trace-memory records (default: 0)", "trace-rank"),
		app.Choice(&f.options.StreamPolicy, alloc.Policies, "keep values in a caching allocator like PyTorch's, under this policy for buffers of other streams, in place of the planned arena; on the cpu of a trace alone", "stream-policy"),
	}
}

// avoidRecordStreams is PyTorch's switch.
const avoidRecordStreams = "TORCH_NCCL_AVOID_RECORD_STREAMS"

func (f *flags) checkTracing(e *app.Env) error {
	gpu := f.options.Device == "cuda"
	if gpu && f.options.StreamPolicy == "" && os.Getenv(avoidRecordStreams) == "0" {
		f.options.StreamPolicy = alloc.RecordStream.String()
		e.Log.Info(avoidRecordStreams + "=0: values lie in a caching allocator, as with --stream-policy record-stream")
	}
	switch {
	case !gpu && f.options.StreamPolicy != "" && f.traceMemory == "":
		return exit.Usage.Errorf("--stream-policy: on the cpu it shapes a trace alone: give --trace-memory FILE too, or --device cuda")
	case f.traceMemory == "-" && e.OutIsTerminal():
		return exit.Usage.Errorf("--trace-memory -: stdout is a terminal: pipe the trace on (titan-run ... | memprof snapshot -) or name a file")
	case e.Given("trace-rank") && f.traceMemory == "":
		return exit.Usage.Errorf("--trace-rank: give --trace-memory FILE too")
	case f.traceMemory == "-" && f.options.TraceRank > 0 && (gpu || f.options.Comm == "mpi"):
		return exit.Usage.Errorf("--trace-memory -: rank %d is another process: name a file", f.options.TraceRank)
	}
	return nil
}

// traced does work while the trace is written, if that is this process's part. A run that fails leaves a trace of what was
// before, for memory that ran out is in it; a trace that could not be written, or was not begun, leaves what was there.
func (f *flags) traced(e *app.Env, m *manifest.Manifest, work func() error) error {
	launch, err := comm.Launched(os.Getenv)
	if err != nil {
		return err
	}
	apart := f.options.Comm == "mpi" || f.options.Comm == "nccl" || f.options.Device == "cuda" && m.Mesh.WorldSize > 1
	switch {
	case f.traceMemory == "" || apart && launch.Rank != f.options.TraceRank:
		return work()
	case f.traceMemory == "-":
		f.options.TraceMemory = e.Out
		return work()
	}
	var failed error
	err = app.WriteFile(f.traceMemory, func(w io.Writer) error {
		t := &traceFile{w: w, err: errNoTrace}
		f.options.TraceMemory = t
		failed = work()
		return t.err
	})
	switch {
	case failed != nil:
		return failed
	case err != nil:
		return fmt.Errorf("memory trace: %w", err)
	}
	return nil
}

var errNoTrace = errors.New("nothing was traced")

// traceFile remembers whether all of a trace reached its file: errNoTrace before the first write.
type traceFile struct {
	w   io.Writer
	err error
}

func (t *traceFile) Write(p []byte) (int, error) {
	n, err := t.w.Write(p)
	if t.err == nil || t.err == errNoTrace {
		t.err = err
	}
	return n, err
}
