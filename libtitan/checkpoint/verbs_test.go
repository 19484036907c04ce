package checkpoint

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
	"titan/libtitan/exit"
	"titan/libtitan/pickle"
)

func openTest(t *testing.T, dir string) *Reader {
	r, err := Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { r.Close() })
	return r
}

func TestListHashesAreThoseOfWholeTensors(t *testing.T) {
	dir := fixtures + "/f4_titan_full_state"
	r := openTest(t, dir+"/ckpt")
	want := expected(t, dir)
	for _, jobs := range []int{1, 5} {
		o := ListOptions{Hash: true, ReadOptions: ReadOptions{Jobs: jobs}}
		var names []string
		require.NoError(t, List(context.Background(), r, o, func(l Listed) error {
			names = append(names, l.FQN)
			if l.Kind == KindTensor {
				require.Equal(t, want[l.FQN].SHA256, l.SHA256, l.FQN)
			}
			return nil
		}))
		require.Len(t, names, len(want))
		require.IsIncreasing(t, names)
	}
}

func TestListedJSON(t *testing.T) {
	r := openTest(t, smallFolder(t, nil))
	var lines []string
	require.NoError(t, List(context.Background(), r, ListOptions{Glob: "*.w*"}, func(l Listed) error {
		b, err := json.Marshal(l)
		lines = append(lines, string(b))
		return err
	}))
	require.Equal(t, []string{
		`{"fqn":"a.weight","kind":"tensor","dtype":"float32","shape":[6,4],"chunks":[{"offsets":[0,0],"sizes":[4,4]},{"offsets":[4,0],"sizes":[2,4]}],"bytes":96}`,
		`{"fqn":"b.weight","kind":"tensor","dtype":"float32","shape":[6],"chunks":[{"offsets":[0],"sizes":[6]}],"bytes":24}`,
	}, lines)
	err := List(context.Background(), r, ListOptions{Glob: "["}, nil)
	require.Equal(t, int(exit.Usage), exit.Code(err))
}

func TestListStopsWhenAsked(t *testing.T) {
	r := openTest(t, fixtures+"/f4_titan_full_state/ckpt")
	ctx, cancel := context.WithCancel(context.Background())
	err := List(ctx, r, ListOptions{Hash: true}, func(Listed) error { cancel(); return nil })
	require.ErrorIs(t, err, context.Canceled)
}

func show(t *testing.T, r *Reader, fqn string, o ShowOptions) string {
	var b strings.Builder
	require.NoError(t, Show(context.Background(), &b, r, fqn, o))
	return b.String()
}

func TestShow(t *testing.T) {
	data := make([]byte, 48)
	for i, x := range []float32{0, 1.5, -2, float32(math.NaN()), float32(math.Inf(1)), 7, 8, 9, 10, 11, 12, 13} {
		binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(x))
	}
	shape := []int64{3, 4}
	dir := filepath.Join(t.TempDir(), "ck")
	s := State{
		Tensors: []Tensor{{FQN: "w", DType: dtype.Float32, Shape: shape, Chunks: Whole(shape, func(dst []byte, off int64) error { copy(dst, data[off:]); return nil })}},
		Objects: []Object{{FQN: "o", Value: pickle.Tuple{1, 2.0, "x", nil, true, []any{}, []byte("abc"), map[string]any{"k": pickle.Tuple{3}}}}},
	}
	require.NoError(t, Write(context.Background(), dir, s, WriteOptions{}))
	r := openTest(t, dir)
	require.Equal(t, "fqn: w\nkind: tensor\ndtype: float32\nshape: [3 4]\nbytes: 48\nchunk: offsets [0 0] sizes [3 4] in __0_0.distcp at 1083+1335\n"+
		"elements: 12\nnan: 1\ninf: 1\nzero: 1\nmin: -2\nmax: 13\nmean: 6.95\nstd: 5.01223503\n0 1.5 -2 nan\ninf 7 8 9\n10 11 12 13\n",
		show(t, r, "w", ShowOptions{Stats: true}))
	require.True(t, strings.HasSuffix(show(t, r, "w", ShowOptions{Slice: "1:3,2"}), "1335\n8\n12\n"))
	require.True(t, strings.HasSuffix(show(t, r, "w", ShowOptions{Slice: "2"}), "1335\n10 11 12 13\n"))
	require.True(t, strings.HasSuffix(show(t, r, "w", ShowOptions{Slice: ":,3:"}), "1335\nnan\n9\n13\n"))
	require.Contains(t, show(t, r, "o", ShowOptions{}), `value: (1, 2.0, "x", None, True, [], <3 bytes>, {"k": (3,)})`)

	for slice, want := range map[string]string{"0:9": `"0:9" is no range within a dim of 3`, "0,0,0": "has 3 dims where the tensor has 2", "x": "is no range", "2:1": "is no range", ",0": "is no range", "-1": "is no range"} {
		err := Show(context.Background(), new(strings.Builder), r, "w", ShowOptions{Slice: slice})
		require.ErrorContains(t, err, want)
		require.Equal(t, int(exit.Usage), exit.Code(err))
	}
	err := Show(context.Background(), new(strings.Builder), r, "module.w", ShowOptions{})
	require.ErrorContains(t, err, "module.w: no such item: did you mean w?")
}

func TestElementsAreSpelt(t *testing.T) {
	for _, c := range []struct {
		dt   dtype.DType
		hex  uint64
		want string
	}{
		{dtype.Float16, 0x3c01, "1.0009766"}, {dtype.Float16, 0x0001, "5.9604645e-08"}, {dtype.Float16, 0xfc00, "-inf"}, {dtype.Float16, 0x7e00, "nan"},
		{dtype.BFloat16, 0x3f81, "1.0078125"}, {dtype.BFloat16, 0x0001, "9.1835e-41"}, {dtype.BFloat16, 0x8000, "-0"},
		{dtype.Float8E4M3FN, 0x7e, "448"}, {dtype.Float8E4M3FN, 0x7f, "nan"}, {dtype.Float8E4M3FN, 0x01, "0.001953125"},
		{dtype.Float8E5M2, 0x7b, "57344"}, {dtype.Float8E5M2, 0x7c, "inf"}, {dtype.Float8E4M3FNUZ, 0x80, "nan"}, {dtype.Float8E4M3FNUZ, 0x7f, "240"},
		{dtype.Float8E5M2FNUZ, 0x7f, "57344"}, {dtype.Float8E8M0FNU, 127, "1"}, {dtype.Float8E8M0FNU, 0xff, "nan"}, {dtype.Float4E2M1FNX2, 0x2a, "0x2a"},
		{dtype.Int8, 0xff, "-1"}, {dtype.UInt8, 0xff, "255"}, {dtype.Int64, 1 << 63, "-9223372036854775808"}, {dtype.UInt64, math.MaxUint64, "18446744073709551615"},
		{dtype.Bool, 1, "True"}, {dtype.Complex32, 0xbc003c00, "1-1j"}, {dtype.Float64, 0x3fb999999999999a, "0.1"}, {dtype.Float32, 0x3dcccccd, "0.1"},
	} {
		b := binary.LittleEndian.AppendUint64(nil, c.hex)[:min(8, c.dt.Size())]
		require.Equal(t, c.want, formatElement(c.dt, b), "%s %x", c.dt, c.hex)
	}
}

func TestULPs(t *testing.T) {
	f32 := func(x float32) []byte { return binary.LittleEndian.AppendUint32(nil, math.Float32bits(x)) }
	tiny := math.Float32frombits(1)
	require.Equal(t, uint64(1), ulps(dtype.Float32, f32(1), f32(math.Nextafter32(1, 2))))
	require.Equal(t, uint64(2), ulps(dtype.Float32, f32(tiny), f32(-tiny)))
	require.Equal(t, uint64(0), ulps(dtype.Float32, f32(0), f32(float32(math.Copysign(0, -1)))))
	require.Equal(t, uint64(1), ulps(dtype.BFloat16, []byte{0x80, 0x3f}, []byte{0x81, 0x3f}))
}

func differences(t *testing.T, a, b Source, o DiffOptions) []string {
	var out []string
	found, _, err := Diff(context.Background(), a, b, o)
	require.NoError(t, err)
	for _, d := range found {
		out = append(out, d.FQN+": "+d.Why)
	}
	return out
}

func TestLayoutsAreEqual(t *testing.T) {
	for _, name := range []string{"f1_single_rank_full", "f4_titan_full_state", "f5_zstd_torch2.14"} {
		r := openTest(t, filepath.Join(fixtures, name, "ckpt"))
		dir := filepath.Join(t.TempDir(), "ck")
		require.NoError(t, Write(context.Background(), dir, cutAgain(t, r, 5), WriteOptions{}))
		require.Empty(t, differences(t, r, openTest(t, dir), DiffOptions{ReadOptions: ReadOptions{MaxMemory: 1}}))
	}
}

func TestDiff(t *testing.T) {
	write := func(edit func(*State, []byte)) *Reader {
		s := smallState()
		data := make([]byte, 24)
		for i := range 6 {
			binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(float32(i)))
		}
		if edit != nil {
			edit(&s, data)
		}
		s.Tensors[1].Chunks[0].Fill = func(dst []byte, off int64) error { copy(dst, data[off:]); return nil }
		dir := filepath.Join(t.TempDir(), "ck")
		require.NoError(t, Write(context.Background(), dir, s, WriteOptions{}))
		return openTest(t, dir)
	}
	nudge := func(by float32) func(*State, []byte) {
		return func(_ *State, data []byte) {
			binary.LittleEndian.PutUint32(data[8:], math.Float32bits(2+by))
			binary.LittleEndian.PutUint32(data[20:], math.Float32bits(5+by))
		}
	}
	base := write(nil)
	require.Empty(t, differences(t, base, write(nil), DiffOptions{}))
	require.Equal(t, []string{"b.weight: 2 of 6 elements differ, first at [2]: 2 and 2.25; at most 0.25 apart, 1048576 ulp"}, differences(t, base, write(nudge(0.25)), DiffOptions{}))
	require.Empty(t, differences(t, base, write(nudge(0.25)), DiffOptions{Atol: 0.25}))
	require.Equal(t, []string{"b.weight: 1 of 6 elements differ, first at [2]: 2 and 2.25; at most 0.25 apart, 1048576 ulp"}, differences(t, base, write(nudge(0.25)), DiffOptions{Rtol: 0.1}))
	require.Equal(t, []string{"b.weight: 2 of 6 elements differ, first at [2]: 2 and -1; at most 3 apart"}, differences(t, base, write(nudge(-3)), DiffOptions{}))
	nan := write(nudge(float32(math.NaN())))
	require.Equal(t, []string{"b.weight: 2 of 6 elements differ, first at [2]: 2 and nan; NaN against a number"}, differences(t, base, nan, DiffOptions{Atol: 1}))

	other := write(func(s *State, _ []byte) {
		s.Objects[0].Value = 8
		s.Objects = append(s.Objects, Object{FQN: "extra", Value: 1})
		s.Tensors[0].FQN = "_orig_mod.a.weight" // the same parameter
		s.Tensors[1].DType, s.Tensors[1].Shape = dtype.BFloat16, []int64{12}
		s.Tensors[1].Chunks[0].Sizes = []int64{12}
	})
	require.Equal(t, []string{"b.weight: shape [6] and [12]", "extra: only in the second", "train_state.step: 7 and 8"}, differences(t, base, other, DiffOptions{}))
	require.Equal(t, []string{"_orig_mod.a.weight: only in the second"}, differences(t, write(func(s *State, _ []byte) { s.Tensors[0].FQN = "c" }), write(func(s *State, _ []byte) {
		s.Tensors = append(s.Tensors, s.Tensors[0])
		s.Tensors[0].FQN, s.Tensors[2].FQN = "c", "_orig_mod.a.weight"
	}), DiffOptions{}))
}

func verify(t *testing.T, dir string) []string {
	var faults []string
	v, err := Verify(context.Background(), dir, VerifyOptions{}, func(f string) error { faults = append(faults, f); return nil })
	require.NoError(t, err)
	require.Equal(t, len(faults), v.Faults)
	return faults
}

func TestVerifyFindsNothingInPyTorchsFolders(t *testing.T) {
	dirs, err := filepath.Glob(fixtures + "/*")
	require.NoError(t, err)
	for _, dir := range dirs {
		require.Empty(t, verify(t, filepath.Join(dir, "ckpt")), dir)
	}
}

func TestVerifyTellsEveryFault(t *testing.T) {
	dir := smallFolder(t, func(p *writePlan) {
		p.state.Tensors[0].Chunks[1].Sizes[0] = 1
		p.files[1].items[1].offset -= 10 // b.weight onto a.weight
	})
	require.NoError(t, os.WriteFile(filepath.Join(dir, "__7_0.distcp"), nil, 0o666))
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".metadata.tmp"), nil, 0o666))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "notes.txt"), nil, 0o666))
	require.Equal(t, []string{
		"file __0_0.distcp: a.weight and b.weight overlap at byte 1389",
		"file .metadata.tmp is stale: no item lies in it",
		"file __7_0.distcp is stale: no item lies in it",
		"a.weight: the chunks cover 20 of 24 elements",
		"a.weight: chunk at [4 0] in __1_0.distcp: the item has shape [2 4] where the metadata says [1 4]",
	}, verify(t, dir))

	dir = smallFolder(t, nil)
	require.NoError(t, os.Remove(filepath.Join(dir, "__1_0.distcp")))
	path := filepath.Join(dir, "__0_0.distcp")
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, bytes.ReplaceAll(b, []byte("FloatStorage"), []byte("EvilsStorage")), 0o666))
	require.Equal(t, []string{
		"file __1_0.distcp is missing: it holds train_state.step and 1 more items",
		`a.weight: chunk at [0 0] in __0_0.distcp: pickle: offset 53: GLOBAL: "EvilsStorage" of module "torch" is not allowed here`,
		`b.weight: chunk at [0] in __0_0.distcp: pickle: offset 53: GLOBAL: "EvilsStorage" of module "torch" is not allowed here`,
	}, verify(t, dir))
}
