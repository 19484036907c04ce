package checkpoint

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"titan/libtitan/dtype"
	"titan/libtitan/exit"
	"titan/libtitan/model/llama3"
	"titan/libtitan/placement"
)

// filled is a tensor of its own bytes, in one chunk.
func filled(fqn string, dt dtype.DType, shape []int64, data []byte) Tensor {
	return Tensor{FQN: fqn, DType: dt, Shape: shape, Chunks: Whole(shape, func(dst []byte, off int64) error { copy(dst, data[off:]); return nil })}
}

// writeState writes a folder.
func writeState(t testing.TB, s State) string {
	dir := filepath.Join(t.TempDir(), "ck")
	require.NoError(t, Write(context.Background(), dir, s, WriteOptions{}))
	return dir
}

func openSource(t testing.TB, path string) Source {
	src, err := OpenSource(path)
	require.NoError(t, err)
	t.Cleanup(func() { src.Close() })
	return src
}

func readAll(t testing.TB, src Source, it Item) []byte {
	data := make([]byte, it.Bytes)
	require.NoError(t, src.ReadRegion(it.FQN, make([]int64, len(it.Shape)), it.Shape, data))
	return data
}

// requireSame holds two checkpoints equal, item by item and byte by byte.
func requireSame(t testing.TB, a, b Source) {
	require.Len(t, b.Items(), len(a.Items()))
	for i, x := range a.Items() {
		y := b.Items()[i]
		require.Equal(t, x.FQN, y.FQN)
		require.Equal(t, x.Kind, y.Kind, x.FQN)
		require.Equal(t, x.Path, y.Path, x.FQN)
		if x.Kind == KindBytes {
			v, err1 := a.ObjectZip(x.FQN)
			w, err2 := b.ObjectZip(y.FQN)
			require.NoError(t, err1)
			require.NoError(t, err2)
			require.Equal(t, v, w, x.FQN)
			continue
		}
		require.Equal(t, x.DType, y.DType, x.FQN)
		require.Equal(t, x.Shape, y.Shape, x.FQN)
		require.True(t, bytes.Equal(readAll(t, a, x), readAll(t, b, y)), x.FQN)
	}
}

func chunksOf(t testing.TB, src Source, fqn string) []Box {
	i := slices.IndexFunc(src.Items(), func(it Item) bool { return it.FQN == fqn })
	require.GreaterOrEqual(t, i, 0, fqn)
	return src.Items()[i].Chunks
}

func reshardTo(t testing.TB, in string, l *Layout) string {
	out := filepath.Join(t.TempDir(), "out")
	require.NoError(t, Reshard(context.Background(), in, out, l, MoveOptions{}))
	return out
}

func worldLayout(t testing.TB, n int) *Layout {
	l, err := WorldLayout(n)
	require.NoError(t, err)
	return l
}

func TestReshardRoundTheHouses(t *testing.T) {
	in := filepath.Join(fixtures, "f4_titan_full_state", "ckpt")
	grid, err := newLayout(placement.Mesh{1, 2, 1, 2}, nil)
	require.NoError(t, err)
	at := in
	for _, l := range []*Layout{worldLayout(t, 1), worldLayout(t, 8), worldLayout(t, 3), grid, worldLayout(t, 1)} {
		at = reshardTo(t, at, l)
		requireSame(t, openSource(t, in), openSource(t, at))
		entries, err := os.ReadDir(at)
		require.NoError(t, err)
		require.Len(t, entries, l.World()+2, "a file a rank, .metadata and the checksums")
	}
}

// FSDP over TP cuts as PyTorch does.
func TestLayoutOfTwoAxes(t *testing.T) {
	grid, err := newLayout(placement.Mesh{1, 2, 1, 2}, nil)
	require.NoError(t, err)
	in := filepath.Join(fixtures, "f3b_fsdp_over_tp_strided", "ckpt")
	want, got := openSource(t, in), openSource(t, reshardTo(t, in, grid))
	for _, it := range want.Items() {
		if strings.HasPrefix(it.FQN, "layers.") {
			require.ElementsMatch(t, it.Chunks, chunksOf(t, got, it.FQN), it.FQN)
		}
	}
}

// Public reports: ranks with nothing to hold could not be loaded again.
func TestRanksWithNothingToHold(t *testing.T) {
	s := State{Tensors: []Tensor{
		filled("six", dtype.Float32, []int64{6}, pattern(24, 1)), filled("one", dtype.Float32, []int64{1}, pattern(4, 2)),
		filled("scalar", dtype.Float32, []int64{}, pattern(4, 3)), filled("empty", dtype.Float32, []int64{0, 5}, nil),
		filled("prime", dtype.Float32, []int64{73}, pattern(292, 4)),
	}}
	in := writeState(t, s)
	safe := filepath.Join(t.TempDir(), "five.safetensors")
	require.NoError(t, Convert(context.Background(), in, safe, ConvertOptions{To: SafetensorsFiles}))
	four := filepath.Join(t.TempDir(), "four")
	require.NoError(t, Convert(context.Background(), safe, four, ConvertOptions{To: DCP, Layout: worldLayout(t, 4)}))
	sizes := func(fqn string) (out []int64) {
		for _, c := range chunksOf(t, openSource(t, four), fqn) {
			out = append(out, c.Sizes...)
		}
		return out
	}
	require.Equal(t, []int64{2, 2, 2}, sizes("six"))
	require.Equal(t, []int64{1}, sizes("one"))
	require.Empty(t, sizes("scalar"))
	require.Len(t, chunksOf(t, openSource(t, four), "scalar"), 1)
	require.Equal(t, []int64{0, 5}, sizes("empty"))
	require.Equal(t, []int64{19, 19, 19, 16}, sizes("prime"))
	at := four
	for _, n := range []int{3, 8, 1} {
		at = reshardTo(t, at, worldLayout(t, n))
		requireSame(t, openSource(t, in), openSource(t, at))
	}
}

func TestLayoutsCoverEachElementOnce(t *testing.T) {
	names := []string{"layers.0.attention.wq.weight", "layers.3.attention.wo.weight", "optimizer.state.layers.1.feed_forward.w2.weight.exp_avg", "norm.weight", "output.weight", "strange"}
	rapid.Check(t, func(t *rapid.T) {
		degree := rapid.IntRange(1, 4)
		l, err := newLayout(placement.Mesh{degree.Draw(t, "rep"), degree.Draw(t, "shard"), degree.Draw(t, "cp"), degree.Draw(t, "tp")}, nil)
		require.NoError(t, err)
		it := Item{FQN: rapid.SampledFrom(names).Draw(t, "name"), Kind: KindTensor, DType: dtype.Float32, Shape: rapid.SliceOfN(rapid.Int64Range(0, 17), 2, 3).Draw(t, "shape")}
		var boxes []Box
		for _, p := range l.place(it) {
			boxes = append(boxes, p.box)
			require.NotEmpty(t, p.ranks)
			for _, r := range p.ranks {
				require.Less(t, r, l.World())
			}
		}
		require.NoError(t, checkTiling(it.Shape, boxes))
	})
}

func TestFlatBoxes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.Int64Range(1, 6), 0, 4).Draw(t, "sizes")
		box := Box{make([]int64, len(sizes)), sizes}
		for d := range sizes {
			box.Offsets[d] = rapid.Int64Range(0, 9).Draw(t, "offset")
		}
		n, err := numel(sizes)
		require.NoError(t, err)
		from := rapid.Int64Range(0, n).Draw(t, "from")
		to := rapid.Int64Range(from, n).Draw(t, "to")
		at, strides := from, contiguous(sizes)
		for b := range flatBoxes(box, from, to) {
			first := int64(0)
			for d := range sizes {
				first += (b.Offsets[d] - box.Offsets[d]) * strides[d]
			}
			require.Equal(t, at, first)
			k, err := numel(b.Sizes)
			require.NoError(t, err)
			require.NoError(t, within(b.Offsets, b.Sizes, farCorner(box)))
			at += k
		}
		require.Equal(t, to, at)
	})
}

// farCorner is the far corner of a box, which is a shape that holds it.
func farCorner(b Box) []int64 {
	out := slices.Clone(b.Offsets)
	for d := range out {
		out[d] += b.Sizes[d]
	}
	return out
}

func floats(xs ...float64) (b []byte) {
	for _, x := range xs {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(x)))
	}
	return b
}

// Public reports: values lost their precision without a word, and integers were cast.
func TestCastOnRequestAlone(t *testing.T) {
	moments := "optimizer.state.w.weight.exp_avg"
	in := writeState(t, State{Tensors: []Tensor{
		filled("w.weight", dtype.Float32, []int64{3}, floats(1.00390625, 1.00390625+0x1p-20, 1.01171875)),
		filled("i64", dtype.Int64, []int64{2}, pattern(16, 1)), filled("flags", dtype.Bool, []int64{3}, []byte{1, 0, 1}),
		filled("u8", dtype.UInt8, []int64{2}, []byte{7, 255}), filled("f8", dtype.Float8E4M3FN, []int64{2}, []byte{0x38, 0x7e}),
		filled(moments, dtype.Float32, []int64{1}, floats(1.00390625)), filled("optimizer.state.w.weight.step", dtype.Float32, []int64{}, floats(3)),
	}})
	var notes []string
	out := filepath.Join(t.TempDir(), "st")
	o := ConvertOptions{To: SafetensorsFiles, DType: dtype.BFloat16, MoveOptions: MoveOptions{Note: func(s string) { notes = append(notes, s) }}}
	require.NoError(t, Convert(context.Background(), in, out, o))
	src := openSource(t, out)
	got := map[string]string{}
	for _, it := range src.Items() {
		got[it.FQN] = fmt.Sprintf("%s %x", it.DType, readAll(t, src, it))
	}
	require.Equal(t, map[string]string{
		"w.weight": "bfloat16 803f813f823f", "i64": fmt.Sprintf("int64 %x", pattern(16, 1)), "flags": "bool 010001", "u8": "uint8 07ff",
		"f8": "bfloat16 803fe043", moments: fmt.Sprintf("float32 %x", floats(1.00390625)), "optimizer.state.w.weight.step": fmt.Sprintf("float32 %x", floats(3)),
	}, got)
	require.Equal(t, []string{"cast: 2 tensors, 14 bytes, to bfloat16"}, notes)

	plain := filepath.Join(t.TempDir(), "st")
	require.NoError(t, Convert(context.Background(), in, plain, ConvertOptions{To: SafetensorsFiles}))
	a, b := openSource(t, in), openSource(t, plain)
	for i, it := range a.Items() {
		require.Equal(t, it.DType, b.Items()[i].DType)
		require.Equal(t, readAll(t, a, it), readAll(t, b, b.Items()[i]))
	}
}

// Public reports: names of torch.compile, activation checkpointing and DDP in keys, which then all missed.
func TestWrapperNamesAreTakenOut(t *testing.T) {
	w := func(names ...string) string {
		var s State
		for i, n := range names {
			s.Tensors = append(s.Tensors, filled(n, dtype.Float32, []int64{1}, floats(float64(i))))
		}
		return writeState(t, s)
	}
	in := w("_orig_mod.module.layers.0._checkpoint_wrapped_module.attention.wq.weight", "optimizer.state.module.norm.weight.exp_avg")
	out := filepath.Join(t.TempDir(), "o")
	require.NoError(t, Convert(context.Background(), in, out, ConvertOptions{To: DCP}))
	require.Equal(t, []string{"layers.0.attention.wq.weight", "optimizer.state.norm.weight.exp_avg"}, namesOf(openSource(t, out)))
	kept := filepath.Join(t.TempDir(), "o")
	require.NoError(t, Convert(context.Background(), in, kept, ConvertOptions{To: DCP, MoveOptions: MoveOptions{KeepNames: true}}))
	require.Equal(t, namesOf(openSource(t, in)), namesOf(openSource(t, kept)))

	err := Convert(context.Background(), w("_orig_mod.a", "module.a"), filepath.Join(t.TempDir(), "o"), ConvertOptions{To: DCP})
	require.ErrorContains(t, err, "_orig_mod.a and module.a would both be a")
	require.Equal(t, int(exit.Input), exit.Code(err))
}

func namesOf(src Source) (out []string) {
	for _, it := range src.Items() {
		out = append(out, it.FQN)
	}
	return out
}

// smallLlama is a model whose row i of every weight holds the value i.
func smallLlama(t testing.TB, c llama3.Config, spelling Spelling) string {
	var s State
	for fqn, shape := range llama3.Shapes(c) {
		data := []byte{}
		rest, err := numel(shape[1:])
		require.NoError(t, err)
		for row := range shape[0] {
			for range rest {
				data = append(data, floats(float64(row))...)
			}
		}
		s.Tensors = append(s.Tensors, filled(respell(fqn, spelling), dtype.Float32, shape, data))
	}
	return writeState(t, s)
}

// Public reports: the conversion succeeded, shapes all fitted, and the model talked nonsense.
func TestHuggingFaceRowOrder(t *testing.T) {
	c := llama3.Standard()
	c.Dim, c.NumLayers, c.NumHeads, c.NumKVHeads, c.HeadDim, c.FFNHidden, c.VocabSize = 16, 12, 4, 2, 4, 24, 20
	for _, spelling := range []Spelling{SpellTitan, SpellV02, SpellHead} {
		in := smallLlama(t, c, spelling)
		hf := filepath.Join(t.TempDir(), "hf")
		require.NoError(t, Convert(context.Background(), in, hf, ConvertOptions{To: HuggingFace, Model: &c}))
		src := openSource(t, hf)
		rows := func(fqn string) (out []float64) {
			for _, it := range src.Items() {
				if it.FQN == fqn {
					data := readAll(t, src, it)
					for i := int64(0); i < it.Bytes; i += it.Bytes / it.Shape[0] {
						x, _ := number(dtype.Float32, data[i:i+4])
						out = append(out, x)
					}
				}
			}
			return out
		}
		require.Equal(t, []float64{0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15}, rows("model.layers.11.self_attn.q_proj.weight"))
		require.Equal(t, []float64{0, 2, 1, 3, 4, 6, 5, 7}, rows("model.layers.2.self_attn.k_proj.weight"))
		require.Equal(t, []float64{0, 1, 2, 3, 4, 5, 6, 7}, rows("model.layers.2.self_attn.v_proj.weight"))
		back := filepath.Join(t.TempDir(), "back")
		require.NoError(t, Convert(context.Background(), hf, back, ConvertOptions{To: DCP}))
		requireSame(t, openSource(t, smallLlama(t, c, SpellTitan)), openSource(t, back))
		again := filepath.Join(t.TempDir(), "again")
		require.NoError(t, Convert(context.Background(), hf, again, ConvertOptions{To: HuggingFace}))
		requireSame(t, src, openSource(t, again))
	}
}

// PyTorch's own conversion of the same weights is in the fixture.
func TestHuggingFaceImport(t *testing.T) {
	dir := filepath.Join(hfFixtures, "f6b_hf_consolidated")
	c := llama3.Standard()
	c.Dim, c.NumLayers, c.NumHeads, c.NumKVHeads, c.HeadDim, c.FFNHidden, c.VocabSize = 32, 1, 4, 2, 8, 86, 64
	out := filepath.Join(t.TempDir(), "native")
	require.NoError(t, Convert(context.Background(), filepath.Join(dir, "ckpt"), out, ConvertOptions{To: DCP, Model: &c}))
	src := openSource(t, out)
	native := nativeItems(t, dir)
	require.Len(t, src.Items(), len(native))
	for i := range src.Items() {
		it := src.Items()[i]
		w, ok := native[it.FQN]
		if !ok {
			w, ok = native[respell(it.FQN, SpellV02)]
		}
		require.True(t, ok, it.FQN)
		require.Equal(t, w.SHA256, sha256Hex(readAll(t, src, it)), it.FQN)
	}
}

func nativeItems(t testing.TB, dir string) map[string]expectation {
	b, err := os.ReadFile(filepath.Join(dir, "expected.json"))
	require.NoError(t, err)
	var doc struct {
		Items map[string]expectation `json:"native_items"`
	}
	require.NoError(t, json.Unmarshal(b, &doc))
	return doc.Items
}

func sha256Hex(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

// Public reports: the pieces were there and the index was not, so that nothing could open them.
func TestIndexOfAShardedModel(t *testing.T) {
	c := llama3.Presets()[0].Config
	var s State
	for fqn, shape := range llama3.Shapes(c) {
		n, err := byteSize(shape, 4)
		require.NoError(t, err)
		s.Tensors = append(s.Tensors, filled(fqn, dtype.Float32, shape, pattern(n, fqn[0])))
	}
	in, hf := writeState(t, s), filepath.Join(t.TempDir(), "hf")
	require.NoError(t, Convert(context.Background(), in, hf, ConvertOptions{To: HuggingFace, MaxShard: 64 << 10}))
	index, err := readSafeIndex(filepath.Join(hf, safeIndex))
	require.NoError(t, err)
	src := openSource(t, hf)
	require.Len(t, index.WeightMap, len(src.Items()))
	require.Equal(t, newView(src).sealed(t).tensorBytes(), index.Metadata.TotalSize)
	names := map[string]bool{safeIndex: true, configFile: true}
	for tensor, file := range index.WeightMap {
		names[file] = true
		require.True(t, slices.ContainsFunc(openSource(t, filepath.Join(hf, file)).Items(), func(it Item) bool { return it.FQN == tensor }))
	}
	entries, err := os.ReadDir(hf)
	require.NoError(t, err)
	require.Len(t, entries, len(names))

	// Other file names than usual are as good.
	odd := filepath.Join(t.TempDir(), "odd")
	require.NoError(t, os.Mkdir(odd, 0o777))
	for i, e := range entries {
		if filepath.Ext(e.Name()) == ".safetensors" {
			require.NoError(t, os.Link(filepath.Join(hf, e.Name()), filepath.Join(odd, fmt.Sprintf("part %d.safetensors", i))))
		}
	}
	requireSame(t, src, openSource(t, odd))
}

func TestIndexIsHeldAgainstTheFiles(t *testing.T) {
	write := func(weights map[string]string) string {
		dir := t.TempDir()
		for _, name := range []string{"a", "b"} {
			data := pattern(4, name[0])
			fill := func(dst []byte, off int64) error { copy(dst, data[off:]); return nil }
			require.NoError(t, writeSafetensors(filepath.Join(dir, name+".safetensors"), []SafeSource{{name, dtype.Float32, []int64{1}, fill}}, nil))
		}
		b, err := json.Marshal(map[string]any{"weight_map": weights})
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, safeIndex), b, 0o666))
		return dir
	}
	for want, weights := range map[string]map[string]string{
		"":                                  {"a": "a.safetensors", "b": "b.safetensors"},
		"weight_map has c in a.safetensors": {"a": "a.safetensors", "c": "a.safetensors"},
		"no such file":                      {"a": "a.safetensors", "b": "absent.safetensors"},
		"would lead outside the folder":     {"a": "../a.safetensors"},
		"weight_map has a in b.safetensors": {"a": "b.safetensors", "b": "b.safetensors"},
	} {
		_, err := OpenSource(write(weights))
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, want)
		require.Equal(t, int(exit.Input), exit.Code(err))
	}
}

func (v *view) sealed(t testing.TB) *view {
	require.NoError(t, v.seal())
	return v
}

func TestCancelledMovesLeaveNothing(t *testing.T) {
	in := filepath.Join(fixtures, "f1_single_rank_full", "ckpt")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, to := range []Format{DCP, SafetensorsFiles, Torch} {
		for _, name := range []string{"out", "out.safetensors"} {
			dir := t.TempDir()
			in := in
			if to == SafetensorsFiles {
				in = filepath.Join(fixtures, "f2_fsdp_shard0_x4", "ckpt")
			}
			err := Convert(ctx, in, filepath.Join(dir, name), ConvertOptions{To: to})
			require.Equal(t, int(exit.Interrupted), exit.Code(err), "%s: %v", to, err)
			entries, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, entries, to)
		}
	}
}
