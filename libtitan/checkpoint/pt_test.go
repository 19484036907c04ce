package checkpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const ptFixture = "../../testdata/pt/f8_torch_save_pt"

func expectedPT(t testing.TB) map[string]map[string]expectation {
	b, err := os.ReadFile(ptFixture + "/expected.json")
	require.NoError(t, err)
	var doc struct {
		Files map[string]map[string]expectation
	}
	require.NoError(t, json.Unmarshal(b, &doc))
	return doc.Files
}

// wholeState is what a source holds, each tensor in one chunk.
func wholeState(t *testing.T, src Source) State {
	var s State
	for _, it := range src.Items() {
		if it.Kind == KindBytes {
			v, err := src.Object(it.FQN)
			require.NoError(t, err)
			s.Objects = append(s.Objects, Object{FQN: it.FQN, Path: it.Path, Value: v})
			continue
		}
		data := make([]byte, it.Bytes)
		require.NoError(t, src.ReadRegion(it.FQN, make([]int64, len(it.Shape)), it.Shape, data))
		s.Tensors = append(s.Tensors, Tensor{FQN: it.FQN, Path: it.Path, DType: it.DType, Shape: it.Shape,
			Chunks: Whole(it.Shape, func(dst []byte, off int64) error { copy(dst, data[off:]); return nil })})
	}
	return s
}

func TestTorchFilesWrittenAgain(t *testing.T) {
	out := os.Getenv(rewriteDir)
	if out == "" {
		out = t.TempDir()
	}
	files := expectedPT(t)
	require.Len(t, files, 6)
	for name, want := range files {
		t.Run(name, func(t *testing.T) {
			src, err := OpenSource(filepath.Join(ptFixture, "ckpt", name))
			require.NoError(t, err)
			defer src.Close()
			require.Equal(t, Torch, src.Format())
			checkSource(t, src, want)

			to := filepath.Join(out, name)
			require.NoError(t, WriteTorch(context.Background(), to, wholeState(t, src), WriteOptions{Replace: true}))
			again, err := OpenSource(to)
			require.NoError(t, err)
			defer again.Close()
			checkSource(t, again, want)
		})
	}
}

// DCP folders survive the way through a file by torch.save.
func TestDCPThroughTorch(t *testing.T) {
	for _, name := range []string{"f1_single_rank_full", "f4_titan_full_state", "f4b_optimizer_unflattened"} {
		r := openTest(t, filepath.Join(fixtures, name, "ckpt"))
		to := filepath.Join(t.TempDir(), "x.pt")
		require.NoError(t, WriteTorch(context.Background(), to, wholeState(t, r), WriteOptions{Jobs: 3, MaxMemory: 1}))
		again, err := OpenSource(to)
		require.NoError(t, err)
		defer again.Close()
		checkSource(t, again, expected(t, filepath.Join(fixtures, name)))
	}
}

func TestTorchFilesThatAreNotWritten(t *testing.T) {
	to := filepath.Join(t.TempDir(), "x.pt")
	one := func(fqn string, path ...any) Object { return Object{FQN: fqn, Path: path, Value: 1} }
	for want, s := range map[string]State{
		"a.b: its path [a b] goes through another item, or mixes keys and positions":             {Objects: []Object{one("a", "a"), one("a.b", "a", "b")}},
		"a.0: its path [a 0] goes through another item, or mixes keys and positions":             {Objects: []Object{one("a.b", "a", "b"), one("a.0", "a", 0)}},
		"b: another item has its path [a]":                                                       {Objects: []Object{one("a", "a"), one("b", "a")}},
		"a: another item has its path [a]":                                                       {Objects: []Object{one("a.b", "a", "b"), one("a", "a")}},
		"a.9999999: its path [a 9999999] goes through another item, or mixes keys and positions": {Objects: []Object{one("a.9999999", "a", 9999999)}},
		"a.weight: 2 chunks where a file by torch.save holds a tensor whole":                     smallState(),
	} {
		require.EqualError(t, WriteTorch(context.Background(), to, s, WriteOptions{}), "checkpoint "+to+": "+want)
		require.NoFileExists(t, to)
	}
	require.NoError(t, os.WriteFile(to, nil, 0o666))
	require.EqualError(t, WriteTorch(context.Background(), to, State{}, WriteOptions{}), "checkpoint "+to+": the file exists: choose another, remove it, or replace it with --force")
}

func openTorchBytes(data []byte) (*torchSource, error) {
	s := &torchSource{name: "x.pt", r: bytes.NewReader(data), size: int64(len(data)), close: func() error { return nil }}
	return s, s.open()
}

func FuzzTorchFile(f *testing.F) {
	for _, name := range []string{"bare_tensor.pt", "legacy_nonzip.pt", "hand.pt"} {
		b, err := os.ReadFile(filepath.Join(ptFixture, "ckpt", name))
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := openTorchBytes(data)
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		for _, it := range s.Items() {
			if it.Kind == KindBytes {
				_, err = s.ObjectZip(it.FQN)
			} else if it.Bytes <= 1<<16 {
				err = s.ReadRegion(it.FQN, make([]int64, len(it.Shape)), it.Shape, make([]byte, it.Bytes))
			}
			if err != nil {
				require.NotContains(t, err.Error(), "\n")
			}
		}
	})
}
