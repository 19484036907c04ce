package train

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"
	"unsafe"

	"titan/libtitan/checkpoint"
	"titan/libtitan/comm"
	"titan/libtitan/exit"
)

// saver is a rank's part in the save under way. Rank 0 opens a folder in the making, each rank writes a file of its own
// there, and rank 0 seals it. What takes time runs in the background. The ranks go from phase to phase together, in a
// step's sum or while they wait, when none of them is busy.
type saver struct {
	phase phase
	what  saving
	taken snapshot           // what the rank writes
	crcs  []uint32           // of what it has written
	open  *checkpoint.Shared // rank 0's
	done  chan struct{}      // closed when the phase's work in the background has ended; nil: there is none
	stop  context.CancelFunc // ends it early
	err   error              // of that work
}

type phase int

const (
	ended phase = iota
	opening
	writing
	sealing
	numPhases
)

// start runs the phase's work in the background.
func (s *saver) start(ctx context.Context, work func(ctx context.Context) error) {
	done := make(chan struct{})
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.done = done
	go func() {
		defer close(done)
		defer func() {
			if v := recover(); v != nil {
				s.err = exit.Bug.Errorf("checkpoint: bug: %v (please report this)", v)
			}
		}()
		s.err = work(ctx)
	}()
}

// idle waits for a time until the rank's work has ended, and tells whether it has.
func (s *saver) idle(within time.Duration) bool {
	if s.done == nil {
		return true
	}
	select {
	case <-s.done:
	case <-time.After(within):
		return false
	}
	s.done = nil
	s.stop()
	return true
}

// status is 1 where the rank is busy, and 1 where its work has failed.
func (s *saver) status(within time.Duration) (busy, failed float64) {
	switch {
	case !s.idle(within):
		return 1, 0
	case s.err != nil:
		return 0, 1
	}
	return 0, 0
}

// settle lets the save under way come to a phase. A disk may take its time, a rank may not: they meet again and again
// meanwhile. All learn of a rank that failed.
func (k *rank) settle(ctx context.Context, to phase) error {
	for k.saver.phase != to {
		busy, failed := k.saver.status(min(time.Second, k.stepTimeout()/4))
		sum := []float64{busy, failed}
		if err := k.comm.Sum(ctx, sum); err != nil {
			return err
		}
		if err := k.advance(ctx, sum[0], sum[1]); err != nil {
			return err
		}
	}
	return nil
}

// advance goes on to the next phase, given how many ranks are busy and how many have failed.
func (k *rank) advance(ctx context.Context, busy, failed float64) (err error) {
	s := &k.saver
	switch {
	case failed > 0:
		return k.saveError(ctx)
	case busy > 0 || s.phase == ended:
		return nil
	}
	switch s.phase {
	case opening:
		err = k.write(ctx)
	case writing:
		err = k.seal(ctx)
	case sealing:
		err, s.open, s.taken = s.taken.free(), nil, nil
	}
	s.phase = (s.phase + 1) % numPhases
	return err
}

// begin starts a save: rank 0 makes the folder, which is empty and its own then.
func (k *rank) begin(ctx context.Context, what saving) {
	k.saver = saver{phase: opening, what: what}
	if k.comm.Rank() != 0 {
		return
	}
	k.saver.start(ctx, func(context.Context) error {
		if err := checkpoint.Sweep(k.job.Manifest.Checkpoint.Folder); err != nil {
			k.Log.Warn(err.Error())
		}
		var err error
		k.saver.open, err = checkpoint.Begin(k.making(), true)
		return k.named(err)
	})
}

// making is the folder that ranks write to; another than the step's where that is made of it.
func (k *rank) making() string {
	dir := k.stepDir()
	if k.saver.what.hf {
		return dir + ".parts"
	}
	return dir
}

// stepDir is the folder of the save under way.
func (k *rank) stepDir() string {
	return checkpoint.StepDir(k.job.Manifest.Checkpoint.Folder, k.saver.what.at.Step)
}

// write takes hold of the rank's state and starts to write its file.
func (k *rank) write(ctx context.Context) error {
	s := &k.saver
	var err error
	if s.taken, err = k.machine.take(s.what.mode); err != nil {
		return k.named(err)
	}
	here := 1 // ranks of this process
	if !k.apart() {
		here = k.comm.Size()
	}
	o := checkpoint.WriteOptions{Jobs: max(1, runtime.GOMAXPROCS(0)/here), MaxMemory: 256 << 20 / int64(here)}
	state, dir := k.savedState(s.what, []int{k.comm.Rank()}, s.taken), k.making()
	s.start(ctx, func(ctx context.Context) error {
		err := s.taken.wait()
		if err == nil {
			s.crcs, err = checkpoint.WritePart(ctx, dir, state, o)
		}
		return k.named(err)
	})
	return nil
}

// seal tells rank 0 what each has written; it makes that a checkpoint.
func (k *rank) seal(ctx context.Context) error {
	if k.comm.Rank() != 0 {
		return eachPart(k.saver.crcs, func(part []byte) error { return k.comm.Send(ctx, 0, crcTag, part) })
	}
	k.saver.start(ctx, func(ctx context.Context) error {
		if err := k.sealed(ctx); err != nil {
			return k.named(err)
		}
		what := k.saver.what
		k.Log.Info(fmt.Sprintf("saved %s%s", k.stepDir(), what.note))
		c := k.job.Manifest.Checkpoint
		if err := checkpoint.Prune(c.Folder, what.at.Step, c.KeepLatestK); err != nil {
			k.Log.Warn(err.Error())
		}
		return nil
	})
	return nil
}

// sealed gives the folder its name.
func (k *rank) sealed(ctx context.Context) error {
	s := &k.saver
	state := k.savedState(s.what, comm.World(k.comm.Size()).Ranks, nil)
	crcs, err := k.gatherCRCs(ctx, &state)
	switch {
	case err != nil:
	case s.what.hf:
		err = s.open.SealHuggingFace(ctx, k.stepDir(), state, crcs, k.job.Manifest.Model.Config)
	default:
		err = s.open.Seal(ctx, state, crcs)
	}
	if err == nil {
		s.open = nil
	}
	return err
}

// gatherCRCs is what each rank's WritePart gave, of what state holds.
func (k *rank) gatherCRCs(ctx context.Context, state *checkpoint.State) ([][]uint32, error) {
	crcs := make([][]uint32, k.comm.Size())
	crcs[0] = k.saver.crcs
	for from := 1; from < len(crcs); from++ {
		crcs[from] = make([]uint32, state.NumItems(from))
		if err := eachPart(crcs[from], func(part []byte) error { return k.comm.Recv(ctx, from, crcTag, part) }); err != nil {
			return nil, err
		}
	}
	return crcs, nil
}

const crcTag = "save crcs"

// eachPart calls f for the memory of x, part by part: short messages go from host to host, whatever the engine.
func eachPart(x []uint32, f func(part []byte) error) error {
	for part := range slices.Chunk(x, 2048) {
		if err := f(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(part))), 4*len(part))); err != nil {
			return err
		}
	}
	return nil
}

// named says of an error which save, and which rank, it is of.
func (k *rank) named(err error) error {
	if err == nil {
		return nil
	}
	what := fmt.Sprintf("checkpoint: step %d", k.saver.what.at.Step)
	if k.comm.Size() > 1 {
		what += fmt.Sprintf(": rank %d", k.comm.Rank())
	}
	if why, named := strings.CutPrefix(err.Error(), "checkpoint: "); named {
		return exit.Kind(exit.Code(err)).Errorf("%s: %s", what, why)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// saveError is why a save failed.
func (k *rank) saveError(ctx context.Context) error { return k.told(ctx, "save error", k.saver.err) }

// told is why the ranks end, in the words of the first one that has an error, on every rank: any of them may report it.
func (k *rank) told(ctx context.Context, what string, err error) error {
	const room = 1 << 10
	mine, out := make([]byte, room), make([][]byte, k.comm.Size())
	if err != nil {
		mine[0] = byte(exit.Code(err))
		copy(mine[1:], err.Error())
	}
	for i := range out {
		out[i] = make([]byte, room)
	}
	if err := k.comm.AllGather(ctx, comm.World(len(out)), what, comm.Gathered{Mine: mine, Out: out}); err != nil {
		return err
	}
	for rank, text := range out {
		switch {
		case text[0] == 0:
		case rank == k.comm.Rank():
			return exit.Told(err)
		default:
			return exit.Told(exit.Kind(text[0]).Errorf("%s", bytes.TrimRight(text[1:], "\x00")))
		}
	}
	return exit.Bug.Errorf("%s: no rank says which", what)
}

// endSave ends the save under way when the run ends, by err or without one. Where no other rank is needed it is finished;
// else, since the others may be gone, it is given up, and leaves nothing.
func (k *rank) endSave(err error) error {
	s := &k.saver
	if s.phase == ended {
		return err
	}
	if err != nil && k.comm.Size() == 1 && s.err == nil {
		if saved := k.settle(context.Background(), ended); saved != nil {
			k.Log.Error(saved.Error())
		}
	}
	if s.done != nil {
		s.stop()
		<-s.done
	}
	if s.open != nil {
		s.open.Discard()
	}
	if s.taken != nil {
		err = errors.Join(err, s.taken.free())
	}
	return err
}
