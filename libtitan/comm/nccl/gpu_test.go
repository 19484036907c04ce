package nccl

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"titan/libtitan/comm"
	"titan/libtitan/comm/commtest"
	"titan/libtitan/device/cuda"
	"titan/libtitan/dtype"
	"titan/libtitan/exit"
)

// As a rank the test binary plays the case of this variable, and leaves its error in the folder where ranks meet.
const caseVar = "COMMTEST_CASE"

func TestMain(m *testing.M) {
	if name := os.Getenv(caseVar); name != "" {
		os.Exit(rank(name))
	}
	if how := os.Getenv(startVar); how != "" {
		os.Exit(starter(how))
	}
	os.Exit(m.Run())
}

// onDevice are the cases that need a device.
var onDevice = map[string]func(ctx context.Context, r *Rank) error{
	"collectives": collectives, "graph": inAGraph, "killed": killed,
	"absent":               func(ctx context.Context, r *Rank) error { return absent(ctx, r, false) },
	"absent from a window": func(ctx context.Context, r *Rank) error { return absent(ctx, r, true) },
	"windows":              inWindows, "windows in a graph": windowsInAGraph, "bandwidth": bandwidth, "host": onTheHost,
}

func rank(name string) int {
	err := play(name)
	text := ""
	if err != nil {
		text = err.Error()
	}
	if err := os.WriteFile(filepath.Join(os.Getenv(FolderVar), "error-"+os.Getenv("RANK")), []byte(text), 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return exit.Code(err)
}

func play(name string) error {
	at, err := strconv.Atoi(os.Getenv("LOCAL_RANK"))
	if err != nil {
		return err
	}
	d, err := cuda.Open(at)
	if err != nil {
		return err
	}
	f, limit := onDevice[name], time.Duration(0)
	if f == nil {
		c, err := commtest.Find(name)
		if err != nil {
			return err
		}
		f, limit = func(ctx context.Context, r *Rank) error { return c.Rank(ctx, r) }, c.Timeout
	}
	o := comm.Options{Timeout: time.Minute, Log: slog.New(slog.DiscardHandler)}
	return Run(context.Background(), d, o, func(ctx context.Context, r *Rank) error {
		if limit > 0 { // not of the start, which takes longer than what is late in the case
			r.SetTimeout(limit)
		}
		return f(ctx, r)
	})
}

// needGPUs skips where there are fewer.
func needGPUs(t testing.TB, n int) {
	have, err := cuda.Count()
	if err != nil {
		t.Skipf("SKIPPED: needs %d GPUs, make gpu runs it: %v", n, err)
	}
	if have < n {
		t.Skipf("SKIPPED: needs %d GPUs, %d are here: make gpu runs it where there are", n, have)
	}
}

// job runs a case in size processes and gives the ranks' errors and exit codes, and what they wrote.
func job(t testing.TB, name string, size int) (errs []string, codes []int, out string) {
	needGPUs(t, size)
	dir, err := os.MkdirTemp("", "ranks")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmds, outs := make([]*exec.Cmd, size), make([]bytes.Buffer, size)
	for r := range cmds {
		cmds[r] = exec.CommandContext(ctx, os.Args[0])
		cmds[r].Env = append(os.Environ(), caseVar+"="+name)
		require.NoError(t, become(r, size, dir, func(name, value string) error {
			cmds[r].Env = append(cmds[r].Env, name+"="+value)
			return nil
		}))
		cmds[r].Stdout, cmds[r].Stderr = &outs[r], &outs[r]
		require.NoError(t, cmds[r].Start())
	}
	for r, c := range cmds {
		_ = c.Wait() // its exit code says it
		codes = append(codes, c.ProcessState.ExitCode())
		text, _ := os.ReadFile(filepath.Join(dir, "error-"+strconv.Itoa(r)))
		errs = append(errs, string(text))
		out += outs[r].String()
	}
	return errs, codes, out
}

func TestConformance(t *testing.T) {
	commtest.Run(t, func(t *testing.T, c commtest.Case, size int) []string {
		errs, codes, out := job(t, c.Name, size)
		for r := range errs {
			require.Equal(t, errs[r] == "", codes[r] == 0, "rank %d: %q, code %d: %s", r, errs[r], codes[r], out)
		}
		return errs
	})
}

func TestOnDevice(t *testing.T) {
	for _, name := range []string{"collectives", "graph", "windows", "windows in a graph"} {
		for size := 1; size <= 8; size *= 2 {
			t.Run(fmt.Sprintf("%s/%d ranks", name, size), func(t *testing.T) {
				errs, codes, out := job(t, name, size)
				for r := range errs {
					require.Empty(t, errs[r], "rank %d: %s", r, out)
					require.Zero(t, codes[r], "rank %d: %s", r, out)
				}
				t.Log(out)
			})
		}
	}
}

// A collective to which a rank does not come ends all ranks, with its name.
func TestAbsentRank(t *testing.T) {
	for name, what := range map[string]string{"absent": "all_reduce", "absent from a window": "all_gather"} {
		t.Run(name, func(t *testing.T) {
			errs, codes, out := job(t, name, 2)
			for r := range errs {
				require.Contains(t, errs[r], "rank 0: "+what+" layers.7 (tp [0 1]): not done after 1s", "rank %d: %s", r, out)
				require.Equal(t, int(exit.Lost), codes[r])
			}
		})
	}
}

func TestKilledRank(t *testing.T) {
	began := time.Now()
	errs, codes, out := job(t, "killed", 2)
	require.Contains(t, errs[0], "rank 0: rank 1 is gone: its process ended without a word", out)
	require.Equal(t, int(exit.Lost), codes[0])
	require.Less(t, time.Since(began), 30*time.Second)
}

// bench is what a case works with: a stream, and memory that is filled with what must not stay.
type bench struct {
	*Rank
	s     *cuda.Stream
	world comm.Group
}

func newBench(ctx context.Context, r *Rank, groups ...comm.Group) (*bench, error) {
	s, err := r.dev.NewStream(false)
	if err != nil {
		return nil, err
	}
	b := &bench{r, s, comm.World(r.Size())}
	return b, r.Open(ctx, append(groups, b.world))
}

func (b *bench) put(data []byte) (cuda.Span, error) {
	p, err := b.dev.Alloc(max(len(data), 1))
	if err != nil {
		return cuda.Span{}, err
	}
	return cuda.Span{P: p, Bytes: len(data)}, b.dev.Upload(p, data)
}

func (b *bench) blank(n int) (cuda.Span, error) { return b.put(bytes.Repeat([]byte{0xff}, n)) }

// check runs a work and compares memory with what must be there.
func (b *bench) check(ctx context.Context, what string, w cuda.Work, err error, got []cuda.Span, want [][]byte, dt dtype.DType) error {
	if err != nil {
		return err
	}
	if err := w(); err != nil {
		return err
	}
	if err := b.Sync(ctx, b.s); err != nil {
		return err
	}
	return b.compare(what, got, want, dt)
}

func (b *bench) compare(what string, got []cuda.Span, want [][]byte, dt dtype.DType) error {
	for i, span := range got {
		have := make([]byte, span.Bytes)
		if err := b.dev.Download(have, span.P); err != nil {
			return err
		}
		for at := 0; at < len(have); at += dt.Size() {
			x, y := value(dt, have[at:]), value(dt, want[i][at:])
			if d := math.Abs(x - y); !(d <= tolerances[dt]*(1+math.Abs(y))) {
				return fmt.Errorf("%s: part %d, byte %d: %g, want %g", what, i, at, x, y)
			}
		}
	}
	return nil
}

// tolerances allow for another order of summation; sums of two are exact. Bytes that only move are compared as Int64.
var tolerances = map[dtype.DType]float64{dtype.Float32: 1e-6, dtype.BFloat16: 1e-2, dtype.Float64: 1e-14, dtype.Int64: 0}

func value(dt dtype.DType, b []byte) float64 {
	switch dt {
	case dtype.Float32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
	case dtype.Float64:
		return math.Float64frombits(binary.LittleEndian.Uint64(b))
	case dtype.BFloat16:
		return float64(dtype.F32(binary.LittleEndian.Uint16(b)))
	}
	return float64(int64(binary.LittleEndian.Uint64(b)))
}

func encode(dt dtype.DType, x float64) []byte {
	switch dt {
	case dtype.Float32:
		return binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(x)))
	case dtype.Float64:
		return binary.LittleEndian.AppendUint64(nil, math.Float64bits(x))
	case dtype.BFloat16:
		return binary.LittleEndian.AppendUint16(nil, dtype.BF16(float32(x)))
	}
	return binary.LittleEndian.AppendUint64(nil, uint64(int64(x)))
}

// elements are n random ones that all ranks know.
func elements(d *rand.Rand, dt dtype.DType, n int) []byte {
	var b []byte
	scale := 1.0
	if dt == dtype.Int64 {
		scale = 1e6
	}
	for range n {
		b = append(b, encode(dt, scale*d.NormFloat64())...)
	}
	return b
}

// reduced is the reduction of lists of elements.
func reduced(dt dtype.DType, op comm.Op, of [][]byte) []byte {
	var out []byte
	for at := 0; at < len(of[0]); at += dt.Size() {
		acc := value(dt, of[0][at:])
		for _, b := range of[1:] {
			if op == comm.Max {
				acc = max(acc, value(dt, b[at:]))
			} else {
				acc += value(dt, b[at:])
			}
		}
		out = append(out, encode(dt, acc)...)
	}
	return out
}

// lengths of parts, by member: even, even and large, uneven with empty ones, empty.
func lengths(d *rand.Rand, members, round int) []int {
	out := make([]int, members)
	for i := range out {
		out[i] = []int{1000, 262144, []int{0, 7, 1024, 40961}[d.IntN(4)], 0}[round%4]
	}
	return out
}

func collectives(ctx context.Context, r *Rank) error {
	backwards := comm.Group{Name: "backwards"}
	for i := range r.Size() {
		backwards.Ranks = append(backwards.Ranks, r.Size()-1-i)
	}
	b, err := newBench(ctx, r, backwards)
	if err != nil {
		return err
	}
	kinds := []dtype.DType{dtype.Float32, dtype.BFloat16, dtype.Float64, dtype.Int64}
	for round := range 24 {
		d := rand.New(rand.NewPCG(uint64(round), 3))
		g, dt, op := b.world, kinds[round/4%len(kinds)], comm.Op(round/8%2)
		if round%3 == 1 {
			g = backwards
		}
		for _, f := range []func(ctx context.Context, d *rand.Rand, g comm.Group, dt dtype.DType, op comm.Op, round int) error{b.gather, b.scatter, b.reduce, b.toAll, b.ring} {
			if err := f(ctx, d, g, dt, op, round); err != nil {
				return fmt.Errorf("round %d, %v, %v of %v: %w", round, g, op, dt, err)
			}
		}
	}
	_, err = r.AllReduceOn(b.s, comm.Group{Name: "unknown"}, "x", dtype.Float32, comm.Sum)
	if err == nil || exit.Code(err) != int(exit.Bug) {
		return fmt.Errorf("an unknown group: %v", err)
	}
	return nil
}

// place puts parts in memory: after one another, or each somewhere.
func (b *bench) place(parts [][]byte, apart bool) ([]cuda.Span, error) {
	if apart {
		var out []cuda.Span
		for _, p := range parts {
			s, err := b.put(p)
			if err != nil {
				return nil, err
			}
			out = append(out, s)
		}
		return out, nil
	}
	all, err := b.put(bytes.Join(parts, nil))
	var out []cuda.Span
	for _, p := range parts {
		out = append(out, cuda.Span{P: all.P, Bytes: len(p)})
		all.P += cuda.Ptr(len(p))
	}
	return out, err
}

func blanks(like [][]byte) [][]byte {
	out := make([][]byte, len(like))
	for i, b := range like {
		out[i] = bytes.Repeat([]byte{0xff}, len(b))
	}
	return out
}

// gather: two tensors at once, the second in place.
func (b *bench) gather(ctx context.Context, d *rand.Rand, g comm.Group, _ dtype.DType, _ comm.Op, round int) error {
	var tensors []cuda.Gathered
	var got []cuda.Span
	var want [][]byte
	for k := range 2 {
		var all [][]byte
		for _, n := range lengths(d, len(g.Ranks), round+k) {
			all = append(all, elements(d, dtype.Int64, n))
		}
		me := b.find(g).me
		out, err := b.place(blanks(all), round%5 == 4)
		if err != nil {
			return err
		}
		mine := out[me]
		if k == 0 {
			if mine, err = b.put(all[me]); err != nil {
				return err
			}
		} else if err := b.dev.Upload(mine.P, all[me]); err != nil {
			return err
		}
		tensors = append(tensors, cuda.Gathered{Mine: mine, Out: out})
		got, want = append(got, out...), append(want, all...)
	}
	w, err := b.AllGatherOn(b.s, g, "gather", tensors...)
	return b.check(ctx, "gather", w, err, got, want, dtype.Int64)
}

func (b *bench) scatter(ctx context.Context, d *rand.Rand, g comm.Group, dt dtype.DType, op comm.Op, round int) error {
	var tensors []cuda.Scattered
	var got []cuda.Span
	var want [][]byte
	me := b.find(g).me
	for k := range 2 {
		counts := lengths(d, len(g.Ranks), round+k)
		var mine, toMe [][]byte
		for from := range g.Ranks {
			for to, n := range counts {
				x := elements(d, dt, n)
				if from == me {
					mine = append(mine, x)
				}
				if to == me {
					toMe = append(toMe, x)
				}
			}
		}
		pieces, err := b.place(mine, round%5 == 4)
		if err != nil {
			return err
		}
		out, err := b.blank(len(mine[me]))
		if err != nil {
			return err
		}
		tensors = append(tensors, cuda.Scattered{Pieces: pieces, Out: out})
		got, want = append(got, out), append(want, reduced(dt, op, toMe))
	}
	w, err := b.ReduceScatterOn(b.s, g, "scatter", dt, op, tensors...)
	return b.check(ctx, "scatter", w, err, got, want, dt)
}

func (b *bench) reduce(ctx context.Context, d *rand.Rand, g comm.Group, dt dtype.DType, op comm.Op, round int) error {
	n := lengths(d, 1, round)[0]
	var all [][]byte
	for range g.Ranks {
		all = append(all, elements(d, dt, n))
	}
	in, err := b.put(all[b.find(g).me])
	if err != nil {
		return err
	}
	out := in
	if round%2 == 0 {
		if out, err = b.blank(in.Bytes); err != nil {
			return err
		}
	}
	w, err := b.AllReduceOn(b.s, g, "reduce", dt, op, cuda.Reduced{In: in, Out: out})
	return b.check(ctx, "reduce", w, err, []cuda.Span{out}, [][]byte{reduced(dt, op, all)}, dt)
}

func (b *bench) toAll(ctx context.Context, d *rand.Rand, g comm.Group, _ dtype.DType, _ comm.Op, round int) error {
	me := b.find(g).me
	var give, want [][]byte
	for from := range g.Ranks {
		for to, n := range lengths(d, len(g.Ranks), round) {
			x := elements(d, dtype.Int64, n)
			if from == me {
				give = append(give, x)
			}
			if to == me {
				want = append(want, x)
			}
		}
	}
	in, err := b.place(give, true)
	if err != nil {
		return err
	}
	out, err := b.place(blanks(want), false)
	if err != nil {
		return err
	}
	w, err := b.AllToAllOn(b.s, g, "to all", in, out)
	return b.check(ctx, "to all", w, err, out, want, dtype.Int64)
}

// ring: each member gives the next what it gets of the one before, on a stream of its own for each direction.
func (b *bench) ring(ctx context.Context, d *rand.Rand, g comm.Group, _ dtype.DType, _ comm.Op, round int) error {
	n, me := len(g.Ranks), b.find(g).me
	if n != 2 || g.Name != "world" {
		return nil
	}
	there, back := elements(d, dtype.Int64, 5000), elements(d, dtype.Int64, 3000)
	give, want := there, back
	if me == 1 {
		give, want = back, there
	}
	in, err := b.put(give)
	if err != nil {
		return err
	}
	out, err := b.blank(len(want))
	if err != nil {
		return err
	}
	send, err := b.SendOn(b.s, g, "there", 1-me, in)
	if err != nil {
		return err
	}
	recv, err := b.RecvOn(b.s, g, "back", 1-me, out)
	if me == 1 { // two that both sent first would wait for each other
		send, recv = recv, send
	}
	return b.check(ctx, "ring", func() error { return errors.Join(send(), recv()) }, err, []cuda.Span{out}, [][]byte{want}, dtype.Int64)
}

// inAGraph records collectives and replays them over data that changes.
func inAGraph(ctx context.Context, r *Rank) error {
	b, err := newBench(ctx, r)
	if err != nil {
		return err
	}
	const n = 100_000
	x, err := b.blank(4 * n)
	if err != nil {
		return err
	}
	sum, err := r.AllReduceOn(b.s, b.world, "sum", dtype.Float32, comm.Sum, cuda.Reduced{In: x, Out: x})
	if err != nil {
		return err
	}
	if err := errors.Join(sum(), r.Sync(ctx, b.s)); err != nil { // makes the connections
		return err
	}
	graph, err := b.s.Capture(func() error { return errors.Join(sum(), sum(), sum()) })
	if err != nil {
		return err
	}
	for round := range 5 {
		var all [][]byte
		for i := range r.Size() {
			all = append(all, elements(rand.New(rand.NewPCG(uint64(round), uint64(i))), dtype.Float32, n))
		}
		if err := errors.Join(b.dev.Upload(x.P, all[r.Rank()]), b.s.Launch(graph), r.Sync(ctx, b.s)); err != nil {
			return err
		}
		want := reduced(dtype.Float32, comm.Sum, all)
		for range 2 {
			again := make([][]byte, r.Size())
			for i := range again {
				again[i] = want
			}
			want = reduced(dtype.Float32, comm.Sum, again)
		}
		if err := b.compare("graph", []cuda.Span{x}, [][]byte{want}, dtype.Float32); err != nil {
			return err
		}
	}
	lane, err := r.laneOf(b.s)
	if p := lane.progress(0); err == nil && (!p.idle() || p.started != 1) {
		err = fmt.Errorf("the lane is at %+v after the replays", p)
	}
	return err
}

// absent: rank 0 waits on the device for rank 1, which waits on the host for rank 0.
func absent(ctx context.Context, r *Rank, windowed bool) error {
	tp := comm.Group{Name: "tp", Ranks: []int{0, 1}}
	b, err := newBench(ctx, r, tp)
	if err != nil {
		return err
	}
	x, err := b.blank(1 << 20)
	if err != nil {
		return err
	}
	whole, err := b.window(ctx, tp, 1<<20, windowed)
	if err != nil {
		return err
	}
	var works []cuda.Work
	for _, what := range []string{"layers.6", "layers.7"} {
		w, err := r.AllReduceOn(b.s, tp, what, dtype.Float32, comm.Sum, cuda.Reduced{In: x, Out: x})
		if windowed {
			w, err = r.AllGatherOn(b.s, tp, what, inPlace(whole, r.Rank(), 2))
		}
		if err != nil {
			return err
		}
		works = append(works, w)
	}
	if err := errors.Join(works[0](), r.Sync(ctx, b.s)); err != nil {
		return err
	}
	if r.Rank() == 1 {
		return r.Barrier(ctx)
	}
	r.SetTimeout(time.Second)
	return errors.Join(works[1](), r.Sync(ctx, b.s))
}

func killed(ctx context.Context, r *Rank) error {
	b, err := newBench(ctx, r)
	if err != nil {
		return err
	}
	x, err := b.blank(1 << 20)
	if err != nil {
		return err
	}
	sum, err := r.AllReduceOn(b.s, b.world, "loss", dtype.Float32, comm.Sum, cuda.Reduced{In: x, Out: x})
	if err != nil {
		return err
	}
	if err := errors.Join(sum(), r.Sync(ctx, b.s)); err != nil {
		return err
	}
	if r.Rank() == 1 {
		return syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	return errors.Join(sum(), r.Sync(ctx, b.s))
}
