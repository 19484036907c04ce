package checkpoint

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"titan/libtitan/dtype"
)

func TestElementsAreEncoded(t *testing.T) {
	for _, c := range []struct {
		dt        dtype.DType
		text, hex string // or what is wrong
		err       string
	}{
		{dtype.Float32, "1.5", "0000c03f", ""}, {dtype.Float32, "nan", "0000c07f", ""}, {dtype.Float32, "-inf", "000080ff", ""}, {dtype.Float32, "0.1", "cdcccc3d", ""},
		{dtype.Float64, "0.1", "9a9999999999b93f", ""}, {dtype.Float32, "-0", "00000080", ""},
		{dtype.BFloat16, "1.00390625", "803f", ""}, {dtype.BFloat16, "1.01171875", "823f", ""}, {dtype.BFloat16, "nan", "c07f", ""}, {dtype.BFloat16, "inf", "807f", ""},
		{dtype.Float16, "65504", "ff7b", ""}, {dtype.Float16, "nan", "007e", ""}, {dtype.Float16, "-0", "0080", ""}, {dtype.Float16, "1e-9", "0000", ""},
		{dtype.Float8E4M3FN, "448", "7e", ""}, {dtype.Float8E4M3FN, "nan", "7f", ""}, {dtype.Float8E5M2FNUZ, "nan", "80", ""}, {dtype.Float8E8M0FNU, "2", "80", ""},
		{dtype.Int8, "-128", "80", ""}, {dtype.UInt8, "255", "ff", ""}, {dtype.Int64, "-1", "ffffffffffffffff", ""}, {dtype.UInt64, "18446744073709551615", "ffffffffffffffff", ""},
		{dtype.Bool, "True", "01", ""}, {dtype.Bool, "0", "00", ""},
		{dtype.Float32, "3.5e38", "", "3.5e38 is out of the range of float32: write inf if that is meant"},
		{dtype.Float64, "1e309", "", "1e309 is out of the range of float64"},
		{dtype.BFloat16, "3.4e38", "", "3.4e38 is out of the range of bfloat16"}, {dtype.Float16, "65505", "", "65505 is out of the range of float16"},
		{dtype.Float8E4M3FN, "449", "", "449 is out of the range of float8_e4m3fn"}, {dtype.Float8E4M3FN, "inf", "", "float8_e4m3fn has no inf"},
		{dtype.Float8E8M0FNU, "0", "", "0 is out of the range of float8_e8m0fnu"}, {dtype.Float8E8M0FNU, "-1", "", "-1 is out of the range of float8_e8m0fnu"},
		{dtype.Int8, "128", "", "128 is out of the range of int8"}, {dtype.UInt8, "-1", "", `"-1" is no value of type uint8`}, {dtype.Int32, "1.5", "", `"1.5" is no value of type int32`},
		{dtype.Int64, "nan", "", `"nan" is no value of type int64`}, {dtype.Bool, "2", "", `"2" is no bool: write True or False`},
		{dtype.Complex64, "1", "", "elements of type complex64 are not edited"}, {dtype.Float4E2M1FNX2, "1", "", "elements of type float4_e2m1fn_x2 are not edited"},
	} {
		b, err := encodeElement(c.dt, c.text)
		if c.err != "" {
			require.EqualError(t, err, c.err)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.hex, hex.EncodeToString(b), "%s %s", c.dt, c.text)
	}
}

// What is shown of an element can be set again, and gives the element.
func TestElementsSurviveTheirSpelling(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dt := rapid.SampledFrom([]dtype.DType{dtype.Float32, dtype.Float64, dtype.BFloat16, dtype.Float16, dtype.Float8E4M3FN, dtype.Float8E5M2,
			dtype.Float8E4M3FNUZ, dtype.Float8E8M0FNU, dtype.Int64, dtype.Int16, dtype.UInt32}).Draw(t, "dtype")
		b := binary.LittleEndian.AppendUint64(nil, rapid.Uint64().Draw(t, "bits"))[:dt.Size()]
		if x, _ := number(dt, b); x != x {
			return // of NaNs there are many
		}
		again, err := encodeElement(dt, formatElement(dt, b))
		require.NoError(t, err)
		require.Equal(t, b, again, "%s %s", dt, formatElement(dt, b))
	})
}

// Strides, chunks and CRCs are those of PyTorch's own files.
func TestEditsOfPyTorchsFolders(t *testing.T) {
	for _, name := range []string{"f1_single_rank_full", "f2_fsdp_shard0_x4", "f3b_fsdp_over_tp_strided"} {
		dir := filepath.Join(t.TempDir(), "ck")
		require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join(fixtures, name, "ckpt"))))
		before := openTest(t, filepath.Join(fixtures, name, "ckpt"))
		edited := 0
		for _, it := range before.Items() {
			if it.Kind != KindTensor || !it.DType.IsFloat() || it.DType.Size() < 2 || it.Bytes == 0 || edited == 12 {
				continue
			}
			edited++
			index, at := "", make([]int64, len(it.Shape))
			for d, n := range it.Shape {
				at[d] = n * 2 / 3
				index += "," + formatInt(at[d])
			}
			_, err := Edit(context.Background(), dir, it.FQN, []string{index[min(1, len(index)):] + "=-7"})
			require.NoError(t, err)
			requireOneChanged(t, before, openTest(t, dir), it, at)
		}
		require.Positive(t, edited)
		v, err := Verify(context.Background(), dir, VerifyOptions{Deep: true}, func(fault string) error { t.Error(fault); return nil })
		require.NoError(t, err)
		require.Zero(t, v.Faults)
	}
}

func formatInt(n int64) string {
	return formatElement(dtype.Int64, binary.LittleEndian.AppendUint64(nil, uint64(n)))
}

// requireOneChanged holds a tensor to what it was, but for an element that is -7.
func requireOneChanged(t *testing.T, before, after Source, it Item, at []int64) {
	want, got := make([]byte, it.Bytes), make([]byte, it.Bytes)
	zeros := make([]int64, len(it.Shape))
	require.NoError(t, before.ReadRegion(it.FQN, zeros, it.Shape, want))
	require.NoError(t, after.ReadRegion(it.FQN, zeros, it.Shape, got))
	b, err := encodeElement(it.DType, "-7")
	require.NoError(t, err)
	copy(want[flatIndex(at, contiguous(it.Shape))*int64(len(b)):], b)
	require.Equal(t, want, got, it.FQN)
}

// A folder that cannot be written keeps its file.
func TestAnEditThatFailsLeavesTheFile(t *testing.T) {
	dir := smallFolder(t, nil)
	before := readFolder(t, dir)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := Edit(ctx, dir, "b.weight", []string{"0=1"})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, before, readFolder(t, dir))
}

// Case 9: every key that differs is told in one go.
func TestDiffTellsEveryMismatchAtOnce(t *testing.T) {
	write := func(vocab int64, shape []int64) Source {
		zero := func(dst []byte, _ int64) error { clear(dst); return nil }
		var s State
		for _, name := range []string{"tok_embeddings.weight", "lm_head.weight"} {
			s.Tensors = append(s.Tensors, Tensor{FQN: name, DType: dtype.Float32, Shape: []int64{vocab, 4}, Chunks: Whole([]int64{vocab, 4}, zero)})
		}
		s.Tensors = append(s.Tensors, Tensor{FQN: "w", DType: dtype.Float32, Shape: shape, Chunks: Whole(shape, zero)})
		dir := filepath.Join(t.TempDir(), "ck")
		require.NoError(t, Write(context.Background(), dir, s, WriteOptions{}))
		return openTest(t, dir)
	}
	require.Equal(t, []string{
		"lm_head.weight: shape [256 4] and [259 4]", "tok_embeddings.weight: shape [256 4] and [259 4]", "w: shape [8 4] and [4 8]",
	}, differences(t, write(256, []int64{8, 4}), write(259, []int64{4, 8}), DiffOptions{}))
}

// Case 11: two checkpoints without a name in common are an error that shows names of both.
func TestDiffOfStrangers(t *testing.T) {
	a, err := OpenSource(ptFixture + "/ckpt/module_state_dict.pt")
	require.NoError(t, err)
	defer a.Close()
	b := openTest(t, smallFolder(t, nil))
	_, _, err = Diff(context.Background(), a, b, DiffOptions{})
	require.ErrorContains(t, err, "have no name in common: the first has layers.0.attention.wk.weight, layers.0.attention.wo.weight, "+
		"layers.0.attention.wq.weight and 9 more, the second a.weight, b.weight, train_state.step")
}

func TestCopyFileEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	var out bytes.Buffer
	data := bytes.Repeat([]byte("titan"), maxBlock/4)
	require.NoError(t, copyFile(ctx, &out, bytes.NewReader(data)))
	require.True(t, bytes.Equal(data, out.Bytes()))
	cancel()
	require.ErrorIs(t, copyFile(ctx, &out, bytes.NewReader(data)), context.Canceled)
}
