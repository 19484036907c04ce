package checkpoint

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"titan/libtitan/exit"
	"titan/libtitan/manifest"
)

// MoveOptions are those of every verb that writes a checkpoint from another.
type MoveOptions struct {
	WriteOptions
	KeepNames bool                                 // wrapper parts stay in the names
	Note      func(string)                         // what a person should know, a line at a time; may be nil
	Begin     func(totalBytes int64) func(n int64) // starts a progress bar over the tensors' bytes; may be nil
}

func (o *MoveOptions) note(format string, args ...any) {
	if o.Note != nil {
		o.Note(fmt.Sprintf(format, args...))
	}
}

// openView opens a checkpoint and takes the wrapper parts out of its names: what this project writes has none.
func openView(path string, o *MoveOptions) (*view, error) {
	src, err := OpenSource(path)
	if err != nil {
		return nil, err
	}
	v := newView(src)
	if !o.KeepNames {
		if n := v.rename(unwrapped); n > 0 {
			o.note("%s without wrapper parts (_orig_mod, _checkpoint_wrapped_module, module): --keep-names keeps them", manifest.Counted(n, "name"))
		}
	}
	return v, nil
}

// target is where and how a view is written.
type target struct {
	path     string
	format   Format
	layout   *Layout // of a DCP folder; nil: as the source is cut
	maxShard int64   // of a safetensors folder
	extra    []extraFile
}

// extraFile is a small file beside the tensors.
type extraFile struct {
	name string
	data []byte
}

// write writes the view. The target appears whole or not at all.
func (v *view) write(ctx context.Context, t target, o *MoveOptions) error {
	if t.format != Torch {
		v.nameBare(o)
	}
	if err := v.seal(); err != nil {
		return err
	}
	if len(v.items) == 0 {
		return exit.Input.Errorf("checkpoint %s: nothing of it is left to write", v.Name())
	}
	if err := apart(v.Name(), t.path); err != nil {
		return err
	}
	wo := o.WriteOptions
	if o.Begin != nil {
		wo.Progress = o.Begin(v.tensorBytes())
	}
	switch {
	case t.format == DCP:
		s, err := assemble(v, t.layout)
		if err != nil {
			return err
		}
		return Write(ctx, t.path, s, wo)
	case t.format == Torch:
		s, err := nested(v)
		if err != nil {
			return err
		}
		return WriteTorch(ctx, t.path, s, wo)
	}
	v.dropObjects(o)
	if filepath.Ext(t.path) != ".safetensors" || t.extra != nil {
		return v.writeFolder(ctx, t, wo)
	}
	return writeSafeFile(ctx, t.path, safeSources(v), map[string]string{"format": "pt"}, wo)
}

// nameBare gives a tensor that is all of a file by torch.save the file's name: other formats have no nameless items.
func (v *view) nameBare(o *MoveOptions) {
	file := filepath.Base(v.Name())
	stem := strings.TrimSuffix(file, filepath.Ext(file))
	for _, m := range v.moves {
		if m.to.FQN == "" {
			m.to.FQN, m.to.Path = stem, nil
			o.note("the file's one item is called %s", stem)
		}
	}
}

func (v *view) writeFolder(ctx context.Context, t target, o WriteOptions) error {
	st, err := newStage(t.path, o.Replace)
	if err != nil {
		return err
	}
	err = writeSafeFolder(ctx, st.tmp, safeSources(v), t.maxShard, o)
	for _, x := range t.extra {
		if err == nil {
			err = writeSynced(filepath.Join(st.tmp, x.name), x.data)
		}
	}
	if err == nil {
		err = st.commit(ctx)
	}
	if err != nil {
		st.discard()
	}
	return err
}

// dropObjects tells of what safetensors files cannot hold.
func (v *view) dropObjects(o *MoveOptions) {
	var names []string
	for _, it := range v.items {
		if it.Kind == KindBytes {
			names = append(names, it.FQN)
		}
	}
	if len(names) > 0 {
		o.note("%s left out, a safetensors file holds tensors alone: %s", manifest.Counted(len(names), "Python object"), first(3, names))
	}
}

func (v *view) tensorBytes() int64 {
	n := int64(0)
	for _, it := range v.items {
		if it.Kind == KindTensor {
			n += it.Bytes
		}
	}
	return n
}

// apart refuses to write a checkpoint over itself.
func apart(in, out string) error {
	if in == "" { // no file is read
		return nil
	}
	a, err := os.Stat(in)
	if err != nil {
		return err
	}
	if b, err := os.Stat(out); err == nil && os.SameFile(a, b) {
		return exit.Usage.Errorf("%s is both what is read and what would be written", out)
	}
	return nil
}
