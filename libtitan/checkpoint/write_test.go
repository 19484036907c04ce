package checkpoint

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"titan/libtitan/dtype"
	"titan/libtitan/pickle"
)

// fillFrom is a Fill of the box at b of a row-major tensor.
func fillFrom(tensor []byte, shape []int64, b Box, elem int64) Fill {
	n, _ := byteSize(b.Sizes, int(elem))
	chunk := make([]byte, n)
	strides := contiguous(shape)
	cp := boxCopy{elem: elem}
	dst := contiguous(b.Sizes)
	for d := range shape {
		cp.src += b.Offsets[d] * strides[d] * elem
		cp.dims = append(cp.dims, copyDim{b.Sizes[d], strides[d] * elem, dst[d] * elem})
	}
	if err := cp.run(bytes.NewReader(tensor), 0, int64(len(tensor)), chunk); err != nil {
		panic(err)
	}
	return func(dst []byte, off int64) error { copy(dst, chunk[off:]); return nil }
}

// pattern is n bytes that differ from their neighbours.
func pattern(n int64, salt byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7+i>>8) ^ salt
	}
	return b
}

var someTypes = []dtype.DType{dtype.Float32, dtype.BFloat16, dtype.Float64, dtype.Int64, dtype.Bool, dtype.UInt16, dtype.Float8E4M3FN, dtype.Complex128}

// drawTensor makes a tensor of random shape cut into a random grid, its bytes beside it.
func drawTensor(t *rapid.T, fqn string) (Tensor, []byte) {
	dt := rapid.SampledFrom(someTypes).Draw(t, "dtype")
	shape := rapid.SliceOfN(rapid.Int64Range(0, 9), 0, 4).Draw(t, "shape")
	n, err := byteSize(shape, dt.Size())
	require.NoError(t, err)
	data := pattern(n, fqn[0])
	boxes := []Box{{Offsets: []int64{}, Sizes: []int64{}}}
	for d, size := range shape {
		cuts := rapid.SliceOfN(rapid.Int64Range(0, size), 0, 3).Draw(t, fmt.Sprint("cuts of dim ", d))
		cuts = append(cuts, 0, size)
		slices.Sort(cuts)
		cuts = slices.Compact(cuts)
		if len(cuts) == 1 {
			cuts = append(cuts, size) // a dim of size 0
		}
		var next []Box
		for _, b := range boxes {
			for i := 1; i < len(cuts); i++ {
				next = append(next, Box{append(slices.Clone(b.Offsets), cuts[i-1]), append(slices.Clone(b.Sizes), cuts[i]-cuts[i-1])})
			}
		}
		boxes = next
	}
	tensor := Tensor{FQN: fqn, DType: dt, Shape: shape}
	for _, b := range boxes {
		file := rapid.IntRange(0, 3).Draw(t, "file")
		tensor.Chunks = append(tensor.Chunks, Chunk{b.Offsets, b.Sizes, file, fillFrom(data, shape, b, int64(dt.Size()))})
	}
	return tensor, data
}

func TestWrittenTensorsReadBack(t *testing.T) {
	base := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		dir := filepath.Join(base, fmt.Sprint(n))
		var s State
		data := map[string][]byte{}
		for i := range rapid.IntRange(1, 4).Draw(t, "tensors") {
			tensor, b := drawTensor(t, fmt.Sprintf("%c.weight", 'a'+i))
			s.Tensors = append(s.Tensors, tensor)
			data[tensor.FQN] = b
		}
		require.NoError(t, Write(context.Background(), dir, s, WriteOptions{}))
		r, err := Open(dir)
		require.NoError(t, err)
		defer r.Close()
		for _, tensor := range s.Tensors {
			checkRegions(t, r, tensor, data[tensor.FQN])
		}
	})
}

// checkRegions reads a tensor whole, in pieces, and by one random region.
func checkRegions(t *rapid.T, r *Reader, tensor Tensor, data []byte) {
	it, ok := r.Item(tensor.FQN)
	require.True(t, ok)
	require.Equal(t, tensor.DType, it.DType)
	require.Equal(t, []any{tensor.FQN}, it.Path)
	whole := make([]byte, len(data))
	require.NoError(t, r.ReadRegion(tensor.FQN, make([]int64, len(tensor.Shape)), tensor.Shape, whole))
	require.Equal(t, data, whole)
	var streamed []byte
	block := rapid.Int64Range(1, 300).Draw(t, "block")
	require.NoError(t, r.Stream(tensor.FQN, block, func(b []byte) error { streamed = append(streamed, b...); return nil }))
	require.True(t, bytes.Equal(data, streamed))

	var region Box
	for _, size := range tensor.Shape {
		from := rapid.Int64Range(0, size).Draw(t, "from")
		region.Offsets = append(region.Offsets, from)
		region.Sizes = append(region.Sizes, rapid.Int64Range(0, size-from).Draw(t, "size"))
	}
	n, err := byteSize(region.Sizes, tensor.DType.Size())
	require.NoError(t, err)
	got, want := make([]byte, n), make([]byte, n)
	require.NoError(t, fillFrom(data, tensor.Shape, region, int64(tensor.DType.Size()))(want, 0))
	require.NoError(t, r.ReadRegion(tensor.FQN, region.Offsets, region.Sizes, got))
	require.Equal(t, want, got)
}

// bigState has a tensor of several blocks, a small one and objects, over two files.
func bigState() State {
	shape := []int64{700, 1000}
	data := pattern(2_800_000, 1)
	top, low := Box{[]int64{0, 0}, []int64{401, 1000}}, Box{[]int64{401, 0}, []int64{299, 1000}}
	return State{
		Tensors: []Tensor{
			{FQN: "big", DType: dtype.Float32, Shape: shape, Chunks: []Chunk{
				{top.Offsets, top.Sizes, 0, fillFrom(data, shape, top, 4)}, {low.Offsets, low.Sizes, 1, fillFrom(data, shape, low, 4)}}},
			{FQN: "optimizer.state.big.step", Path: []any{"optimizer", "state.big.step"}, DType: dtype.Float32,
				Chunks: Whole(nil, func(dst []byte, _ int64) error { binary.LittleEndian.PutUint32(dst, 0x40a00000); return nil })},
		},
		Objects: []Object{
			{FQN: "train_state.step", Path: []any{"train_state", "step"}, Value: 5},
			{FQN: "dataloader.dp_rank_0", Path: []any{"dataloader", "dp_rank_0"}, Value: []byte{0, 200, 255}, File: 1},
			{FQN: "betas", Value: pickle.Tuple{0.9, 0.95}},
			{FQN: "long", Value: string(pattern(1<<20, 'x')[:100]) + string(bytes.Repeat([]byte("long "), 50_000))},
		},
	}
}

func readFolder(t *testing.T, dir string) map[string][]byte {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	out := map[string][]byte{}
	for _, e := range entries {
		out[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
	}
	return out
}

func TestBytesDoNotDependOnJobsOrMemory(t *testing.T) {
	var first map[string][]byte
	for i, o := range []WriteOptions{{Jobs: 1}, {Jobs: 7}, {Jobs: 2, MaxMemory: 1}} {
		dir := filepath.Join(t.TempDir(), "step-5")
		require.NoError(t, Write(context.Background(), dir, bigState(), o))
		got := readFolder(t, dir)
		if i == 0 {
			first = got
			require.Len(t, first, 4)
		}
		require.Equal(t, first, got)
	}
}

func TestObjectsReadBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "step-5")
	s := bigState()
	require.NoError(t, Write(context.Background(), dir, s, WriteOptions{}))
	r, err := Open(dir)
	require.NoError(t, err)
	defer r.Close()
	for fqn, want := range map[string]any{"train_state.step": int64(5), "dataloader.dp_rank_0": []byte{0, 200, 255}, "betas": pickle.Tuple{0.9, 0.95}, "long": s.Objects[3].Value} {
		got, err := r.Object(fqn)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	it, _ := r.Item("train_state.step")
	require.Equal(t, []any{"train_state", "step"}, it.Path)
}

func TestAFailedWriteLeavesWhatWasThere(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "step-5")
	require.NoError(t, Write(context.Background(), dir, bigState(), WriteOptions{}))
	before := readFolder(t, dir)

	check := func(s State, o WriteOptions, ctx context.Context, want error) {
		err := Write(ctx, dir, s, o)
		require.ErrorIs(t, err, want)
		require.Equal(t, before, readFolder(t, dir))
		entries, err := os.ReadDir(parent)
		require.NoError(t, err)
		require.Len(t, entries, 1, "nothing else is left")
	}
	full := bigState()
	full.Tensors[0].Chunks[1].Fill = func([]byte, int64) error { return syscall.ENOSPC }
	check(full, WriteOptions{Replace: true}, context.Background(), syscall.ENOSPC)

	huge := []int64{1 << 46}
	unasked := func([]byte, int64) error { return errors.New("a byte was asked for") }
	check(State{Tensors: []Tensor{{FQN: "w", DType: dtype.Float32, Shape: huge, Chunks: Whole(huge, unasked)}}}, WriteOptions{Replace: true}, context.Background(), syscall.ENOSPC)

	cancelled, cancel := context.WithCancel(context.Background())
	check(bigState(), WriteOptions{Replace: true, Progress: func(int64) { cancel() }}, cancelled, context.Canceled)

	err := Write(context.Background(), dir, bigState(), WriteOptions{})
	require.ErrorContains(t, err, "step-5: the folder exists and is not empty")
	require.Equal(t, before, readFolder(t, dir))
}

func TestReplaceSwapsTheFolder(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "step-5")
	require.NoError(t, os.Mkdir(dir, 0o777)) // an empty folder is as good as none
	require.NoError(t, Write(context.Background(), dir, bigState(), WriteOptions{}))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "__9_0.distcp"), nil, 0o666))
	require.NoError(t, Write(context.Background(), dir, bigState(), WriteOptions{Replace: true}))
	require.NoFileExists(t, filepath.Join(dir, "__9_0.distcp"))
	_, err := os.Stat(filepath.Join(parent, ".step-5.partial"))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestStatesThatNoReaderCouldLoad(t *testing.T) {
	zero := func([]byte, int64) error { return nil }
	for name, c := range map[string]struct {
		chunks []Chunk
		want   string
	}{
		"gap":      {[]Chunk{{[]int64{0, 0}, []int64{2, 3}, 0, zero}}, "checkpoint: w: the chunks cover 6 of 12 elements"},
		"overlap":  {[]Chunk{{[]int64{0, 0}, []int64{3, 3}, 0, zero}, {[]int64{2, 0}, []int64{2, 3}, 0, zero}}, "checkpoint: w: the chunks at [0 0] of [3 3] and at [2 0] of [2 3] overlap"},
		"outside":  {[]Chunk{{[]int64{1, 0}, []int64{4, 3}, 0, zero}}, "checkpoint: w: offsets [1 0] and sizes [4 3] reach outside the shape [4 3]"},
		"dims":     {[]Chunk{{[]int64{0}, []int64{4}, 0, zero}}, "checkpoint: w: offsets [0] and sizes [4] in a tensor of shape [4 3]: the numbers of dims differ"},
		"twice":    {[]Chunk{{[]int64{0, 0}, []int64{0, 3}, 0, zero}, {[]int64{0, 0}, []int64{4, 3}, 0, zero}}, "checkpoint: w: two chunks at [0 0]"},
		"none":     {nil, "checkpoint: w: no chunks: an empty tensor too has one, of its empty shape"},
		"negative": {[]Chunk{{[]int64{0, 0}, []int64{4, 3}, -1, zero}}, "checkpoint: w: file -1 is negative"},
	} {
		t.Run(name, func(t *testing.T) {
			s := State{Tensors: []Tensor{{FQN: "w", DType: dtype.Float32, Shape: []int64{4, 3}, Chunks: c.chunks}}}
			err := Write(context.Background(), filepath.Join(t.TempDir(), "x"), s, WriteOptions{})
			require.EqualError(t, err, c.want)
		})
	}
	err := Write(context.Background(), filepath.Join(t.TempDir(), "x"), State{Objects: []Object{{FQN: "a"}, {FQN: "a"}}}, WriteOptions{})
	require.EqualError(t, err, `checkpoint: "a": the name is empty or stands twice`)
	err = Write(context.Background(), filepath.Join(t.TempDir(), "x"), State{Objects: []Object{{FQN: "a", Value: errors.New}}}, WriteOptions{})
	require.ErrorContains(t, err, "has no Python form here")
}

func TestJoinedCRCs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.SliceOf(rapid.Byte()).Draw(t, "a"), rapid.SliceOf(rapid.Byte()).Draw(t, "b")
		want := crc32.ChecksumIEEE(slices.Concat(a, b))
		require.Equal(t, want, joinCRC(crc32.ChecksumIEEE(a), crc32.ChecksumIEEE(b), int64(len(b))))
	})
}

// The items that PyTorch wrote and ours of the same tensors agree byte for byte up to the record that only PyTorch
// has (.data/serialization_id).
func TestItemsEqualPyTorchs(t *testing.T) {
	r, err := Open(fixtures + "/f1_single_rank_full/ckpt")
	require.NoError(t, err)
	defer r.Close()
	compared := 0
	for _, it := range r.Items() {
		if it.Kind != KindTensor || len(it.Chunks) != 1 {
			continue
		}
		m := r.meta.tensors[it.FQN]
		item, err := r.tensorItem(m, 0)
		require.NoError(t, err)
		if !slices.Equal(item.strides, contiguous(it.Shape)) {
			continue // PyTorch keeps the strides of a transposed tensor
		}
		data := make([]byte, it.Bytes)
		require.NoError(t, r.ReadRegion(it.FQN, make([]int64, len(it.Shape)), it.Shape, data))
		pkl, err := tensorPickle(it.DType, it.Shape)
		require.NoError(t, err)
		z := newZipItem(pkl, it.Bytes)
		ours := append(append(slices.Clone(z.head), data...), z.tail(crc32.ChecksumIEEE(data))...)
		f, err := r.folder.file(m.at[0].path)
		require.NoError(t, err)
		theirs := make([]byte, m.at[0].length)
		require.NoError(t, readFull(f, theirs, m.at[0].offset))
		end := bytes.Index(ours, []byte("PK\x01\x02"))
		require.Equal(t, theirs[:end], ours[:end], it.FQN)
		compared++
	}
	require.Greater(t, compared, 50)
}

// Two writers of one folder: the second is told, and harms nothing.
func TestOneWriterAtATime(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "step-1")
	first, err := newStage(dir, true)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(first.tmp, "__0_0.distcp"), []byte("x"), 0o644))
	_, err = newStage(dir, true)
	require.ErrorContains(t, err, "another process is writing it")
	require.FileExists(t, filepath.Join(first.tmp, "__0_0.distcp"))
	require.NoError(t, first.commit(context.Background()))
	second, err := newStage(dir, true)
	require.NoError(t, err)
	second.discard()
	require.FileExists(t, filepath.Join(dir, "__0_0.distcp"))
}

// Chunks of one dtype and shape share their zip: metadata-heavy folders are planned in little memory.
func TestChunksOfOneShapeShareTheirZip(t *testing.T) {
	zips := tensorZips{}
	a, err := zips.get(dtype.Float32, []int64{2, 3})
	require.NoError(t, err)
	b, err := zips.get(dtype.Float32, []int64{2, 3})
	require.NoError(t, err)
	require.Same(t, &a.head[0], &b.head[0])
	for _, other := range []struct {
		dt    dtype.DType
		sizes []int64
	}{{dtype.Int32, []int64{2, 3}}, {dtype.Float32, []int64{3, 2}}, {dtype.Float32, []int64{6}}, {dtype.Float32, nil}} {
		c, err := zips.get(other.dt, other.sizes)
		require.NoError(t, err)
		require.NotEqual(t, a.head, c.head, other)
	}
	require.Len(t, zips, 5)
}
