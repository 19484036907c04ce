package checkpoint

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/exit"
	"titan/libtitan/pickle"
)

// torchFile is a zip by torch.save around a data.pkl of our own wording, with n bytes in data/0 (none if negative).
func torchFile(pkl string, n int64) []byte {
	z := newZipItem([]byte(pkl), n)
	return append(append(z.head, pattern(max(n, 0), 1)...), z.tail(0)...)
}

// tensorOf is a data.pkl of a float32 tensor with that storage key, numel, offset, size and stride.
func tensorOf(t *testing.T, location, key string, numel, offset int64, size, stride []int64) string {
	var b bytes.Buffer
	e := pickle.NewEncoder(&b, 2)
	e.Global("torch._utils", "_rebuild_tensor_v2")
	e.Op('(', '(')
	e.Str("storage")
	e.Global("torch", "FloatStorage")
	e.Str(key)
	e.Str(location)
	e.Int(numel)
	e.EndTuple(5)
	e.Op('Q')
	e.Int(offset)
	e.Ints(size)
	e.Ints(stride)
	e.Bool(false)
	e.Op('N')
	e.EndTuple(6)
	e.Op('R')
	require.NoError(t, e.Stop())
	return b.String()
}

// A file from a stranger is refused in one line that names it, by every verb that reads it.
func TestBadFiles(t *testing.T) {
	zipped := torchFile("\x80\x02N.", -1)
	legacy, err := os.ReadFile(ptFixture + "/ckpt/legacy_nonzip.pt")
	require.NoError(t, err)
	f4 := []int64{4}
	one := []int64{1}
	patched := func(b []byte, old, new string) []byte { return bytes.Replace(b, []byte(old), []byte(new), 1) }
	huge := safeFile(twoTensors, 0, 32)
	binary.LittleEndian.PutUint64(huge, 1<<63)
	for _, c := range []struct {
		name string
		file []byte
		want string
	}{
		{"x.bin", nil, "neither a safetensors file nor one by torch.save"},
		{"x.bin", []byte("hello, world"), "neither a safetensors file nor one by torch.save"},
		{"x.safetensors", nil, "0 bytes: no header"},
		{"x.safetensors", huge, "a header of 9223372036854775808 bytes, where the file has 153 and the format allows 100000000"},
		{"x.safetensors", safeFile(twoTensors, 0, 27), `the file is cut: 27 bytes of data where 32 are needed; the first tensor affected is "b"`},
		{"x.safetensors", safeFile(twoTensors, 0, 39), "7 bytes after the last tensor"},
		{"x.safetensors", safeFile(strings.Replace(twoTensors, "[24,32]", "[20,28]", 1), 0, 28), `"a" and "b" overlap`},
		{"x.safetensors", safeFile(strings.Replace(twoTensors, "[24,32]", "[28,36]", 1), 0, 36), `a hole of 4 bytes before "b"`},
		{"x.safetensors", safeFile(strings.Replace(twoTensors, "[2,3]", "[2,2]", 1), 0, 32), `header: "a": 24 bytes where float32 [2 2] takes 16`},
		{"x.safetensors", safeFile(`{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`, 0, 0), `header: "a": the sizes [4294967296 4294967296] multiply beyond 63 bits`},
		{"x.safetensors", safeFile(`{"a":{"dtype":"Q4","shape":[1],"data_offsets":[0,1]}}`, 0, 1), `header: "a": unknown safetensors dtype "Q4"`},

		{"x.pt", zipped[:len(zipped)-30], "not a torch.save zip: no end record"},
		{"x.pt", bytes.ReplaceAll(zipped, []byte("archive/data.pkl"), []byte("archive/late.pkl")), `no record "data.pkl" in the zip`},
		{"x.pt", torchFile("\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R.", -1), `pickle: offset 2: GLOBAL: "system" of module "os" is not allowed here`},
		{"x.pt", torchFile("\x80\x02c__builtin__\neval\nX\x01\x00\x00\x001\x85R.", -1), `pickle: offset 2: GLOBAL: "eval" of module "__builtin__" is not allowed here`},
		{"x.pt", torchFile("\x80\x02ctorch.nn.modules.linear\nLinear\n)\x81.", -1), `pickle: offset 2: GLOBAL: "Linear" of module "torch.nn.modules.linear" is not allowed here`},
		{"x.pt", torchFile("I1\n.", -1), "pickle: offset 0: INT: the opcode is not allowed here"},
		{"x.pt", torchFile("\x80\x02X\xff\xff\xff\xffa.", -1), "pickle: offset 2: BINUNICODE: a length of 4294967295 where 2 bytes are left"},
		{"x.pt", torchFile("\x80\x02]q\x00h\x00a.", -1), "a value nested more than 200 deep, or that holds itself"},
		{"x.pt", torchFile("\x80\x02}(K\x01NX\x01\x00\x00\x001Nu.", -1), `two values have the name "1"`},
		{"x.pt", torchFile("\x80\x02}(X\x03\x00\x00\x00a.bNX\x01\x00\x00\x00a}X\x01\x00\x00\x00bNsu.", -1), `two values have the name "a.b"`},
		{"x.pt", torchFile(tensorOf(t, "cpu", "0", 5, 0, f4, one), 16), `BINPERSID: record "data/0" holds 16 bytes where the tensor's storage has 20`},
		{"x.pt", torchFile(tensorOf(t, "cpu", "1", 4, 0, f4, one), 16), `BINPERSID: no record "data/1"`},
		{"x.pt", torchFile(tensorOf(t, "cpu", "1\n2", 4, 0, f4, one), 16), `BINPERSID: no record "data/1\n2"`},
		{"x.pt", torchFile(tensorOf(t, "cpu", "0", 4, 1, f4, one), 16), "REDUCE: shape [4], strides [1] and offset 1 reach beyond the storage's 4 elements"},
		{"x.pt", torchFile(tensorOf(t, "cpu", "0", 4, 0, []int64{-4}, one), 16), "REDUCE: negative size in [-4]"},
		{"x.pt", torchFile(tensorOf(t, "cpu", "0", 4, 0, f4, []int64{-1}), 16), "REDUCE: shape [4] with strides [-1]"},
		{"x.pt", torchFile(tensorOf(t, "cpu", "0", 4, 0, []int64{2, 2}, one), 16), "REDUCE: shape [2 2] with strides [1]"},
		{"x.pt", torchFile(tensorOf(t, "meta", "0", 4, 0, f4, one), 16), "BINPERSID: a tensor of device meta has no data"},
		{"x.pt", patched(torchFile("\x80\x02N.", -1), "little", "bigger"), `byte order "bigger": only little-endian data is read`},

		{"x.pt", legacy[:40], "legacy file: "},
		{"x.pt", legacy[:len(legacy)-7], `legacy file: storage "`},
		{"x.pt", patched(legacy, "\x80\x02M\xe9\x03.", "\x80\x02M\xea\x03."), "legacy file: protocol 1002 where 1001 is known"},
		{"x.metadata", []byte("hello"), "pickle: offset 2: LIST: the opcode is not allowed here"},
	} {
		path := filepath.Join(t.TempDir(), c.name)
		require.NoError(t, os.WriteFile(path, c.file, 0o666))
		_, _, listErr := OpenListing(path)
		_, verifyErr := Verify(context.Background(), path, VerifyOptions{Deep: true}, func(string) error { return nil })
		t.Logf("| `%s` | %s |", c.name, strings.ReplaceAll(listErr.Error(), filepath.Dir(path)+"/", ""))
		for _, err := range []error{listErr, verifyErr} {
			require.ErrorContains(t, err, path)
			require.Equal(t, int(exit.Input), exit.Code(err))
			require.NotContains(t, err.Error(), "\n")
		}
		require.ErrorContains(t, listErr, c.want)
	}
}

// What is asked of a good checkpoint can be wrong too.
func TestBadQuestions(t *testing.T) {
	dir := smallFolder(t, nil)
	ctx := context.Background()
	edit := func(fqn, set string) error {
		_, err := Edit(ctx, dir, fqn, []string{set})
		return err
	}
	r := openTest(t, dir)
	show := func(fqn, slice string) error { return Show(ctx, io.Discard, r, fqn, ShowOptions{Slice: slice}) }
	for want, err := range map[string]error{
		"checkpoint " + dir + ": c: no such item":                                                               edit("c", "0=1"),
		"checkpoint " + dir + ": weight: no such item: did you mean a.weight, b.weight?":                        show("weight", ""),
		"checkpoint " + dir + ": train_state.step: a Python object: only elements of tensors are edited":        edit("train_state.step", "0=1"),
		`--set "1" is not INDEX=VALUE, such as 3,0=nan`:                                                         edit("b.weight", "1"),
		`--set "6=1": "6" is no index within a dim of 6`:                                                        edit("b.weight", "6=1"),
		`--set "-1=1": "-1" is no index within a dim of 6`:                                                      edit("b.weight", "-1=1"),
		`--set "1=x": "x" is no value of type float32`:                                                          edit("b.weight", "1=x"),
		`--set "1=1e400": 1e400 is out of the range of float32`:                                                 edit("b.weight", "1=1e400"),
		`slice "0:7": "0:7" is no range within a dim of 6 (write 0:4,0:8)`:                                      show("b.weight", "0:7"),
		`checkpoint ` + dir + `: no name fits the pattern "x*": there are a.weight, b.weight, train_state.step`: List(ctx, r, ListOptions{Glob: "x*"}, nil),
	} {
		require.EqualError(t, err, want)
		t.Logf("| | %s |", strings.ReplaceAll(want, dir, "DIR"))
	}
}

func TestBadSideFiles(t *testing.T) {
	for text, want := range map[string]string{
		"x": "line 1: invalid character 'x' looking for beginning of value",
		`{"file":"../x","bytes":1,"crc32":"00000000"}`:                                                   `line 1: file name "../x" would lead outside the folder`,
		`{"file":"x","bytes":-1,"crc32":"00000000"}`:                                                     `line 1: no size, no CRC, or a second line for "x"`,
		`{"file":"x","bytes":1,"crc32":"00000000"}` + "\n" + `{"file":"x","bytes":1,"crc32":"00000000"}`: `line 2: no size, no CRC, or a second line for "x"`,
	} {
		dir := smallFolder(t, nil)
		path := filepath.Join(dir, checksumName)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
		_, err := Verify(context.Background(), dir, VerifyOptions{Deep: true}, func(string) error { return nil })
		require.EqualError(t, err, "checkpoint "+path+": "+want)
		require.Empty(t, verify(t, dir), "without --deep nobody looks at it")
		t.Logf("| `.titan-checksums` | %s |", want)
	}
}

// An index that leads elsewhere or says what is not so.
func TestBadIndexes(t *testing.T) {
	for text, want := range map[string]string{
		"[]": ": not an index of safetensors files: ",
		`{"weight_map":{"a":"../x.safetensors"}}`:                                      `a: file name "../x.safetensors" would lead outside the folder`,
		`{"weight_map":{"a":"y.safetensors"}}`:                                         "y.safetensors: no such file or directory",
		`{"weight_map":{"a":"x.safetensors"}}`:                                         "weight_map lacks b, which ",
		`{"weight_map":{"a":"x.safetensors","b":"x.safetensors","c":"x.safetensors"}}`: "weight_map has c in x.safetensors, which does not hold it",
	} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "x.safetensors"), safeFile(twoTensors, 0, 32), 0o666))
		require.NoError(t, os.WriteFile(filepath.Join(dir, safeIndex), []byte(text), 0o666))
		_, _, err := OpenListing(dir)
		require.ErrorContains(t, err, want)
		require.Equal(t, int(exit.Input), exit.Code(err))
		t.Logf("| `%s` | %s |", safeIndex, strings.ReplaceAll(err.Error(), dir, "DIR"))
	}
}

// A file that no index names is told of.
func TestStaleSafetensors(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "x.safetensors"), safeFile(twoTensors, 0, 32), 0o666))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "old.safetensors"), safeFile(`{}`, 0, 0), 0o666))
	require.NoError(t, os.WriteFile(filepath.Join(dir, safeIndex), []byte(`{"weight_map":{"a":"x.safetensors","b":"x.safetensors"}}`), 0o666))
	require.Equal(t, []string{"file old.safetensors is stale: the index does not name it"}, verify(t, dir))
}
