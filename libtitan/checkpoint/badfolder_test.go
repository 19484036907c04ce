package checkpoint

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
	"titan/libtitan/exit"
)

// smallState is two tensors and an object in two files.
func smallState() State {
	a, b := pattern(96, 1), pattern(24, 2)
	shape := []int64{6, 4}
	top, low := Box{[]int64{0, 0}, []int64{4, 4}}, Box{[]int64{4, 0}, []int64{2, 4}}
	return State{
		Tensors: []Tensor{
			{FQN: "a.weight", DType: dtype.Float32, Shape: shape, Chunks: []Chunk{
				{top.Offsets, top.Sizes, 0, fillFrom(a, shape, top, 4)}, {low.Offsets, low.Sizes, 1, fillFrom(a, shape, low, 4)}}},
			{FQN: "b.weight", DType: dtype.Float32, Shape: []int64{6}, Chunks: Whole([]int64{6}, func(dst []byte, off int64) error { copy(dst, b[off:]); return nil })},
		},
		Objects: []Object{{FQN: "train_state.step", Value: 7, File: 1}},
	}
}

// smallFolder writes smallState; edit changes what the metadata says of it, if not nil.
func smallFolder(t testing.TB, edit func(*writePlan)) string {
	dir := filepath.Join(t.TempDir(), "step-1")
	s := smallState()
	require.NoError(t, Write(context.Background(), dir, s, WriteOptions{}))
	if edit != nil {
		plan, err := newWritePlan(&s)
		require.NoError(t, err)
		edit(plan)
		var b bytes.Buffer
		require.NoError(t, writeMetadata(&b, plan.state, plan.files, nil))
		require.NoError(t, os.WriteFile(filepath.Join(dir, ".metadata"), b.Bytes(), 0o666))
	}
	return dir
}

func TestFoldersThatAreRefused(t *testing.T) {
	file := func(name string, change func([]byte) []byte) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			b, err := os.ReadFile(filepath.Join(dir, name))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), change(b), 0o666))
		}
	}
	remove := func(names ...string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			for _, n := range names {
				require.NoError(t, os.Remove(filepath.Join(dir, n)))
			}
		}
	}
	for name, c := range map[string]struct {
		edit  func(*writePlan)
		after func(*testing.T, string)
		want  string // without the folder
	}{
		"no metadata":       {nil, remove(".metadata"), "incomplete: there are data files but no .metadata, which is written last"},
		"empty":             {nil, remove(".metadata", "__0_0.distcp", "__1_0.distcp"), "no .metadata: not a DCP folder, or an incomplete one"},
		"data file missing": {nil, remove("__1_0.distcp"), "file __1_0.distcp is missing: it holds train_state.step and 1 more items"},
		"cut": {nil, file("__0_0.distcp", func(b []byte) []byte { return b[:2000] }),
			"file __0_0.distcp is cut: 2000 bytes where 2734 are needed; the first item affected is b.weight"},
		"cut to nothing": {nil, file("__0_0.distcp", func(b []byte) []byte { return nil }),
			"file __0_0.distcp is cut: 0 bytes where 2734 are needed; the first item affected is a.weight"},
		"parent":     {func(p *writePlan) { p.files[0].name = "../x" }, nil, `train_state.step: file name "../x" would lead outside the folder`},
		"absolute":   {func(p *writePlan) { p.files[0].name = "/etc/passwd" }, nil, `train_state.step: file name "/etc/passwd" would lead outside the folder`},
		"dots":       {func(p *writePlan) { p.files[0].name = ".." }, nil, `train_state.step: file name ".." would lead outside the folder`},
		"backslash":  {func(p *writePlan) { p.files[0].name = `a\b` }, nil, `train_state.step: file name "a\\b" would lead outside the folder`},
		"negative":   {func(p *writePlan) { p.files[1].items[0].offset = -1 }, nil, "a.weight: range -1+1399 of file __0_0.distcp is no range"},
		"far away":   {func(p *writePlan) { p.files[1].items[0].offset = 1 << 62 }, nil, "a.weight: range 4611686018427387904+1399 of file __0_0.distcp is no range"},
		"gap":        {func(p *writePlan) { p.state.Tensors[0].Chunks[1].Sizes[0] = 1 }, nil, "a.weight: the chunks cover 20 of 24 elements"},
		"overlap":    {func(p *writePlan) { p.state.Tensors[0].Chunks[1].Offsets[0] = 3 }, nil, "a.weight: the chunks at [0 0] of [4 4] and at [3 0] of [2 4] overlap"},
		"outside":    {func(p *writePlan) { p.state.Tensors[0].Chunks[1].Offsets[0] = 5 }, nil, "a.weight: offsets [5 0] and sizes [2 4] reach outside the shape [6 4]"},
		"big shape":  {func(p *writePlan) { p.state.Tensors[1].Shape[0] = 1 << 62 }, nil, `.metadata: "b.weight": a tensor of shape [4611686018427387904] does not fit any memory`},
		"negative n": {func(p *writePlan) { p.state.Tensors[1].Shape[0] = -6 }, nil, `.metadata: "b.weight": negative size in [-6]`},
		"twice":      {func(p *writePlan) { p.state.Objects[0].FQN = "a.weight" }, nil, `.metadata: "a.weight": the name stands twice`},
		"no storage": {func(p *writePlan) { p.files[1].items = p.files[1].items[:1] }, nil, `.metadata: "b.weight": no storage entry for the chunk at [0]`},
		"no pickle":  {nil, file(".metadata", func([]byte) []byte { return []byte("hello") }), ".metadata: pickle: offset 2: LIST: the opcode is not allowed here"},
		"cut pickle": {nil, file(".metadata", func(b []byte) []byte { return b[:500] }), ""},
		"code": {nil, file(".metadata", func([]byte) []byte { return []byte("\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R.") }),
			`.metadata: pickle: offset 2: GLOBAL: "system" of module "os" is not allowed here`},
		"another pickle": {nil, file(".metadata", func([]byte) []byte { return []byte("\x80\x02K\x01.") }), ".metadata: the pickle holds no Metadata object"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := smallFolder(t, c.edit)
			if c.after != nil {
				c.after(t, dir)
			}
			_, err := Open(dir)
			require.Error(t, err)
			require.Equal(t, int(exit.Input), exit.Code(err))
			require.NotContains(t, err.Error(), "\n")
			if c.want != "" {
				want := "checkpoint " + dir + ": " + c.want
				require.EqualError(t, err, strings.Replace(want, ": .metadata", "/.metadata", 1))
			}
		})
	}
	run := runFolder(t, []string{"step-9", "step-10"}, nil)
	_, err := Open(run)
	require.EqualError(t, err, "checkpoint "+run+": a folder of checkpoints: name one of them, such as "+StepDir(run, 10))
	_, err = Open("testdata/safetensors")
	require.EqualError(t, err, "checkpoint testdata/safetensors: a folder of safetensors files, not a DCP folder (no .metadata)")
	_, err = Open(filepath.Join(t.TempDir(), "absent"))
	require.ErrorContains(t, err, "absent: no such file or folder: want a DCP folder")
	require.Equal(t, int(exit.Input), exit.Code(err))
}

// Damage within an item is found when the item is read.
func TestItemsThatAreRefused(t *testing.T) {
	replace := func(old, new string) func([]byte) []byte {
		return func(b []byte) []byte { return bytes.Replace(b, []byte(old), []byte(new), 1) }
	}
	dtypeEdit := func(p *writePlan) { p.state.Tensors[0].DType = dtype.Int32 }
	shapeEdit := func(p *writePlan) {
		t := &p.state.Tensors[0]
		t.Shape = []int64{6, 8}
		t.Chunks[0].Sizes, t.Chunks[1].Sizes = []int64{4, 8}, []int64{2, 8}
	}
	for name, c := range map[string]struct {
		edit   func(*writePlan)
		change func([]byte) []byte
		want   string
	}{
		"dtype":      {dtypeEdit, nil, "the item holds float32 where the metadata says int32"},
		"shape":      {shapeEdit, nil, "the item has shape [4 4] where the metadata says [4 8]"},
		"no zip":     {nil, func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("PK\x05\x06"), []byte("PK\x05\x07")) }, "not a torch.save zip: no end record"},
		"directory":  {nil, func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("PK\x01\x02"), []byte("PK\x01\x03")) }, "zip entry 0: damaged"},
		"no header":  {nil, replace("PK\x03\x04", "PK\x03\x05"), `zip record "data.pkl" has no local header`},
		"big endian": {nil, replace("little", "bigger"), `byte order "bigger": only little-endian data is read`},
		"code":       {nil, replace("ctorch._utils\n_rebuild_tensor_v2\n", "ctorch._utils\n_rebuild_danger_v2\n"), `pickle: offset 2: GLOBAL: "_rebuild_danger_v2" of module "torch._utils" is not allowed here`},
		"storage":    {nil, replace("X\x01\x00\x00\x000q", "X\x01\x00\x00\x001q"), "pickle: offset 98: BINPERSID: no record \"data/1\""},
		"numel":      {nil, replace("K\x10tq", "K\x11tq"), "pickle: offset 98: BINPERSID: record \"data/0\" holds 64 bytes where the tensor's storage has 68"},
		"strides":    {nil, replace("K\x04K\x01\x86q", "K\x09K\x01\x86q"), "pickle: offset 150: REDUCE: shape [4 4], strides [9 1] and offset 0 reach beyond the storage's 16 elements"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := smallFolder(t, c.edit)
			if c.change != nil {
				path := filepath.Join(dir, "__0_0.distcp")
				b, err := os.ReadFile(path)
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(path, c.change(b), 0o666))
			}
			r, err := Open(dir)
			require.NoError(t, err)
			defer r.Close()
			err = r.Stream("a.weight", 1<<20, func([]byte) error { return nil })
			require.EqualError(t, err, "checkpoint "+dir+": a.weight: chunk at [0 0] in __0_0.distcp: "+c.want)
			require.Equal(t, int(exit.Input), exit.Code(err))
		})
	}
}

func TestObjectsThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct{ pkl, want string }{
		"code":      {"\x80\x02cbuiltins\neval\nX\x01\x00\x00\x001\x85R.", `pickle: offset 2: GLOBAL: "eval" of module "builtins" is not allowed here`},
		"user data": {"\x80\x02ccollections\nCounter\n)R.", `pickle: offset 2: GLOBAL: "Counter" of module "collections" is not allowed here`},
		"endless":   {"\x80\x02]q\x00h\x00a.", "a value nested more than 200 deep, or that holds itself"},
		"explosive": {"\x80\x02K\x01" + strings.Repeat("q\x00h\x00\x86", 60) + ".", "a value nested more than 200 deep, or that holds itself"},
		"function":  {"\x80\x02c_codecs\nencode\n.", "a value that stands for no Python data"},
	} {
		t.Run(name, func(t *testing.T) {
			it := newZipItem([]byte(c.pkl), -1)
			data := append(it.head, it.tail(0)...)
			z, err := openZip(bytes.NewReader(data), int64(len(data)))
			require.NoError(t, err)
			v, err := readItem(z)
			if err == nil {
				p := plainer{left: 1 << 16}
				_, err = p.plain(v, 0)
			}
			require.EqualError(t, err, c.want)
		})
	}
	r, err := Open(smallFolder(t, nil))
	require.NoError(t, err)
	defer r.Close()
	_, err = r.Object("a.weight")
	require.ErrorContains(t, err, "a.weight: no such object in the checkpoint")
	require.ErrorContains(t, r.ReadRegion("train_state.step", nil, nil, nil), "train_state.step: no such tensor in the checkpoint")
	require.ErrorContains(t, r.ReadRegion("b.weight", []int64{5}, []int64{2}, make([]byte, 8)), "reach outside the shape [6]")
	require.ErrorContains(t, r.ReadRegion("b.weight", []int64{0}, []int64{2}, make([]byte, 9)), "9 bytes for a region of 8")
}

// Folders of before PyTorch 2 name other modules.
func TestOldModules(t *testing.T) {
	dir := smallFolder(t, nil)
	path := filepath.Join(dir, ".metadata")
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	b = bytes.ReplaceAll(b, []byte("ctorch.distributed.checkpoint.metadata\nTensorProperties"), []byte("ctorch.distributed._shard.sharded_tensor.metadata\nTensorProperties"))
	b = bytes.ReplaceAll(b, []byte("ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT"), []byte("ctorch.distributed._shard.sharded_tensor.metadata\nMEM_FORMAT"))
	b = bytes.ReplaceAll(b, []byte("ctorch.distributed.checkpoint."), []byte("ctorch.distributed._shard.checkpoint."))
	require.NotContains(t, string(b), "distributed.checkpoint")
	require.NoError(t, os.WriteFile(path, b, 0o666))
	r, err := Open(dir)
	require.NoError(t, err)
	defer r.Close()
	require.Len(t, r.Items(), 3)
	v, err := r.Object("train_state.step")
	require.NoError(t, err)
	require.Equal(t, int64(7), v)
}

// Each rank that saves alone leaves metadata of its own; they must agree.
func TestRanksThatDisagree(t *testing.T) {
	merge := func(a, b State) error {
		dir := t.TempDir()
		for i, s := range []State{a, b} {
			one := filepath.Join(t.TempDir(), "one")
			require.NoError(t, Write(context.Background(), one, s, WriteOptions{}))
			md, err := os.ReadFile(filepath.Join(one, ".metadata"))
			require.NoError(t, err)
			data, err := os.ReadFile(filepath.Join(one, "__0_0.distcp"))
			require.NoError(t, err)
			name := []string{"__0_0.distcp", "__1_0.distcp"}[i]
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o666))
			require.NoError(t, os.WriteFile(filepath.Join(dir, []string{"__0.metadata", "__1.metadata"}[i]), bytes.ReplaceAll(md, []byte("__0_0.distcp"), []byte(name)), 0o666))
		}
		_, err := Open(dir)
		return err
	}
	tensor := func(shape ...int64) State {
		return State{Tensors: []Tensor{{FQN: "w", DType: dtype.Float32, Shape: shape, Chunks: Whole(shape, func([]byte, int64) error { return nil })}}}
	}
	object := State{Objects: []Object{{FQN: "w", Value: 1}}}
	require.NoError(t, merge(tensor(4), tensor(4)))
	require.NoError(t, merge(object, object))
	require.EqualError(t, merge(tensor(4), tensor(5)), "checkpoint: w: ranks disagree: float32 [4] and float32 [5]")
	require.EqualError(t, merge(tensor(4), object), "checkpoint: w: ranks disagree: a bytes item and a tensor")
	require.EqualError(t, merge(object, tensor(4)), "checkpoint: w: ranks disagree: a tensor and a bytes item")
}
