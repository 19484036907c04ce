package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"titan/libtitan/exit"
	"titan/libtitan/model/llama3"
)

// Shared is a folder in the making that several processes fill. All know beforehand what lies where. One begins it;
// then each writes a file of its own by [WritePart], on whatever machine; and when all have, the first one seals it with
// the CRCs that they found. Until then the folder has no name that anybody takes for a checkpoint's.
type Shared struct {
	stage *stage
}

// Begin makes the folder in the making of dir, for WritePart.
func Begin(dir string, replace bool) (*Shared, error) {
	st, err := newStage(dir, replace)
	if err != nil {
		return nil, err
	}
	return &Shared{st}, nil
}

// WritePart writes and flushes what s holds, into the folder in the making of dir, which another process may have begun.
// It gives the CRC-32 of each item's data: of the objects first, then of the tensors' chunks, in the order of s.
func WritePart(ctx context.Context, dir string, s State, o WriteOptions) ([]uint32, error) {
	plan, err := newWritePlan(&s)
	if err != nil || len(plan.items) == 0 {
		return nil, err
	}
	tmp := partialName(filepath.Clean(dir))
	if _, err := os.Stat(tmp); errors.Is(err, fs.ErrNotExist) {
		return nil, exit.Input.Errorf("%s is not there, which another rank has made: all ranks must see one folder: name one on a file system that they share", tmp)
	}
	if err := plan.writeFiles(ctx, tmp, o); err != nil {
		return nil, err
	}
	crcs := make([]uint32, len(plan.items))
	for i, it := range plan.items {
		crcs[i] = it.crc
	}
	return crcs, nil
}

// Seal makes the folder a checkpoint of s, whose file __R_0.distcp has items with crcs[R], as WritePart gave them, and
// gives it its name. s needs no Fill here, and no file above those of crcs.
func (f *Shared) Seal(ctx context.Context, s State, crcs [][]uint32) error {
	if err := f.describe(ctx, &s, crcs); err != nil {
		return err
	}
	return f.stage.commit(ctx)
}

// SealHuggingFace makes of what was written, of a model's parameters, the folder dir in Hugging Face's form. The parts
// go away.
func (f *Shared) SealHuggingFace(ctx context.Context, dir string, s State, crcs [][]uint32, model llama3.Config) error {
	if err := f.describe(ctx, &s, crcs); err != nil {
		return err
	}
	src, err := Open(f.stage.tmp)
	if err != nil {
		return err
	}
	defer src.Close()
	o := ConvertOptions{MoveOptions: MoveOptions{WriteOptions: WriteOptions{Replace: f.stage.replace}}, To: HuggingFace, Model: &model}
	if err := newView(src).convert(ctx, dir, &o); err != nil {
		return err
	}
	f.Discard()
	return nil
}

// Discard removes the folder in the making.
func (f *Shared) Discard() { f.stage.discard() }

// describe checks that all parts are there and adds the metadata.
func (f *Shared) describe(ctx context.Context, s *State, crcs [][]uint32) error {
	if err := s.check(); err != nil {
		return err
	}
	plan, err := newWritePlan(s)
	if err != nil {
		return err
	}
	for rank := range crcs {
		out := plan.byRank[rank]
		if out == nil { // it holds nothing that another does not save
			continue
		}
		if len(crcs[rank]) != len(out.items) {
			return exit.Bug.Errorf("checkpoint: %s: %d items were written, %d were planned", out.name, len(crcs[rank]), len(out.items))
		}
		if err := f.arrived(rank, out); err != nil {
			return err
		}
		for i, it := range out.items {
			it.crc = crcs[rank][i]
		}
	}
	return plan.describe(ctx, f.stage.tmp, nil)
}

// arrived checks that a file, which its writer has flushed and closed, is here too.
func (f *Shared) arrived(rank int, out *outFile) error {
	path := filepath.Join(f.stage.tmp, out.name)
	info, err := os.Stat(path)
	if err == nil && info.Size() == out.size {
		return nil
	}
	what := "is not there"
	if err == nil {
		what = fmt.Sprintf("has %d bytes of %d", info.Size(), out.size)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return exit.Input.Errorf("%s, which rank %d has written, %s: all ranks must see one folder: name one on a file system that they share", path, rank, what)
}
