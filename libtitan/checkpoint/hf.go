package checkpoint

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"titan/libtitan/dtype"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
	"titan/libtitan/model/llama3"
)

const configFile = "config.json"

// namedByHF reports whether names are Hugging Face's.
func (v *view) namedByHF() bool {
	return slices.ContainsFunc(v.moves, func(m *move) bool { return theirs(m.to) })
}

// theirs reports whether it has a name of Hugging Face's: such as no model of ours has, by itself or under "model".
func theirs(it Item) bool {
	fqn, _, ok := llama3.FromHuggingFace(it.FQN)
	return ok && strings.TrimPrefix(it.FQN, "model.") != fqn
}

// writeNoting writes the view, and then says that a model of Hugging Face's form keeps that.
func (v *view) writeNoting(ctx context.Context, t target, o *MoveOptions) error {
	err := v.write(ctx, t, o)
	if err == nil && v.namedByHF() && !o.KeepNames {
		o.note("Hugging Face's names and order of rows are kept: ckpt-shard convert %s OUT --to dcp gives it ours", shellWord(v.Name()))
	}
	return err
}

// toHuggingFace gives the model's tensors Hugging Face's names and order of rows, and leaves the rest out. config may be
// nil where the shapes are those of a model that is known.
func (v *view) toHuggingFace(config *llama3.Config, o *MoveOptions) (llama3.Config, error) {
	all := len(v.moves)
	v.keep(func(m *move) bool { return ofModel(m.to) && m.to.Kind == KindTensor })
	if n := all - len(v.moves); n > 0 {
		o.note("%s of the optimizer and the trainer left out", manifest.Counted(n, "item"))
	}
	c, err := v.fit(config, fromOurs, o)
	if err != nil {
		return c, err
	}
	for _, m := range v.moves {
		param, _ := fromOurs(m.to.FQN)
		name, rows, _ := llama3.ToHuggingFace(param)
		m.to.FQN, m.to.Path = name, nil
		if rows != llama3.AsIs {
			m.row = func(i int64) int64 { return llama3.OurRow(i, int64(c.HeadDim)) }
		}
	}
	return c, nil
}

// fromHuggingFace gives tensors our names and order of rows.
func (v *view) fromHuggingFace(config *llama3.Config, o *MoveOptions) error {
	c, err := v.fit(config, fromTheirs, o)
	if err != nil {
		return err
	}
	for _, m := range v.moves {
		fqn, rows, _ := llama3.FromHuggingFace(m.to.FQN)
		m.to.FQN, m.to.Path = fqn, nil
		if rows != llama3.AsIs {
			m.row = func(i int64) int64 { return llama3.TheirRow(i, int64(c.HeadDim)) }
		}
	}
	return nil
}

// fromOurs is a parameter's name in our spelling, for one in any of torchtitan's.
func fromOurs(fqn string) (string, bool) {
	_, param := splitPrefix(respell(fqn, SpellTitan))
	_, _, ok := llama3.ToHuggingFace(param)
	return param, ok
}

// fromTheirs is a parameter's name in our spelling, for Hugging Face's.
func fromTheirs(name string) (string, bool) {
	fqn, _, ok := llama3.FromHuggingFace(name)
	return fqn, ok
}

// fit finds the model's dimensions and holds every tensor, by its name in our spelling, against them. Rotary tables and
// the copy of a tied head are left out.
func (v *view) fit(config *llama3.Config, ours func(string) (string, bool), o *MoveOptions) (llama3.Config, error) {
	v.keep(func(m *move) bool {
		derived := llama3.Derived(m.to.FQN)
		if derived {
			o.note("%s is left out: the rotary table is computed", m.to.FQN)
		}
		return !derived
	})
	shapes, from := map[string][]int64{}, map[string]*move{}
	var unknown []string
	for _, m := range v.moves {
		fqn, ok := ours(m.to.FQN)
		switch other := from[fqn]; {
		case !ok:
			unknown = append(unknown, m.to.FQN)
		case other != nil:
			return llama3.Config{}, v.errorf("%s and %s are both %s", other.from.FQN, m.from.FQN, fqn)
		}
		shapes[fqn], from[fqn] = m.to.Shape, m
	}
	if len(unknown) > 0 {
		return llama3.Config{}, v.errorf("%s of no Llama: %s", manifest.Counted(len(unknown), "name"), first(3, unknown))
	}
	c, err := v.dimensions(config, shapes, o)
	if err != nil {
		return c, err
	}
	if head := from["lm_head.weight"]; c.Tied && head != nil {
		if err := v.sameTensor(head, from["tok_embeddings.weight"]); err != nil {
			return c, err
		}
		v.keep(func(m *move) bool { return m != head })
		delete(shapes, "lm_head.weight")
		o.note("lm_head.weight is left out: the head is tied to the embedding")
	}
	return c, v.misfits(llama3.Shapes(c), shapes)
}

func (v *view) errorf(format string, args ...any) error {
	return exit.Input.Errorf("checkpoint %s: %w", v.Name(), fmt.Errorf(format, args...))
}

// dimensions are those that a person gave, or those of config.json beside the tensors, or those of a model that is known.
func (v *view) dimensions(config *llama3.Config, shapes map[string][]int64, o *MoveOptions) (llama3.Config, error) {
	if config != nil {
		return *config, nil
	}
	if c, err := readConfig(v.Name()); c != nil || err != nil {
		return *cmp.Or(c, &llama3.Config{}), err
	}
	c, name, ok := llama3.Infer(shapes)
	if !ok {
		return c, v.errorf("it does not say how many heads the model has, and the shapes are of no model that is known: give --model or --manifest")
	}
	o.note("%d heads and %d key-value heads, as %s has", c.NumHeads, c.NumKVHeads, name)
	return c, nil
}

// readConfig reads the config.json of a folder; nil where there is none, or no folder.
func readConfig(dir string) (*llama3.Config, error) {
	path := filepath.Join(dir, configFile)
	f, err := openPlain(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c, err := llama3.ReadHuggingFace(f)
	if err != nil {
		return nil, exit.Input.Errorf("%s: %w", path, err)
	}
	return &c, nil
}

// misfits is one error for what is missing, unknown or of another shape.
func (v *view) misfits(want, got map[string][]int64) error {
	var why, missing, unknown []string
	for _, fqn := range slices.Sorted(maps.Keys(want)) {
		switch shape, ok := got[fqn]; {
		case !ok:
			missing = append(missing, fqn)
		case !slices.Equal(shape, want[fqn]):
			why = append(why, fmt.Sprintf("%s has shape %v, the model's %v", fqn, shape, want[fqn]))
		}
	}
	for _, fqn := range slices.Sorted(maps.Keys(got)) {
		if want[fqn] == nil {
			unknown = append(unknown, fqn)
		}
	}
	if len(why) > 3 {
		why = []string{firstBy("; ", 3, why)}
	}
	if len(missing) > 0 {
		why = append(why, "missing: "+first(3, missing))
	}
	if len(unknown) > 0 {
		why = append(why, "not in the model: "+first(3, unknown))
	}
	if len(why) == 0 {
		return nil
	}
	return v.errorf("it does not fit the model: %s: name the model that it is of with --model or --manifest", strings.Join(why, "; "))
}

// sameTensor refuses a tied head that is not the embedding: leaving it out would lose it.
func (v *view) sameTensor(a, b *move) error {
	if b == nil || a.from.DType != b.from.DType || !slices.Equal(a.from.Shape, b.from.Shape) {
		return v.errorf("%s is not the embedding, to which the model's head is tied", a.from.FQN)
	}
	elem := int64(a.from.DType.Size())
	x, y := make([]byte, maxBlock), make([]byte, maxBlock)
	for piece := range pieces(whole(a.from.Shape), maxBlock/elem) {
		n, err := byteSize(piece.Sizes, int(elem))
		if err != nil {
			return err
		}
		if err := v.Source.ReadRegion(a.from.FQN, piece.Offsets, piece.Sizes, x[:n]); err != nil {
			return err
		}
		if err := v.Source.ReadRegion(b.from.FQN, piece.Offsets, piece.Sizes, y[:n]); err != nil {
			return err
		}
		if !bytes.Equal(x[:n], y[:n]) {
			return v.errorf("%s has other values than %s, to which the model's head is tied", a.from.FQN, b.from.FQN)
		}
	}
	return nil
}

// hfConfig is the config.json that goes beside the tensors.
func (v *view) hfConfig(c llama3.Config) (extraFile, error) {
	dt := dtype.Float32
	for _, m := range v.moves {
		if m.to.FQN == "model.embed_tokens.weight" {
			dt = m.to.DType
		}
	}
	var b bytes.Buffer
	err := llama3.WriteHuggingFace(&b, c, dt)
	return extraFile{configFile, b.Bytes()}, err
}
