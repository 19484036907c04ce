package checkpoint

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
)

// fileWriters are the ways to write a single file.
var fileWriters = map[string]func(path string, o WriteOptions) error{
	"torch": func(path string, o WriteOptions) error {
		return WriteTorch(context.Background(), path, State{}, o)
	},
	"safetensors": func(path string, o WriteOptions) error {
		return writeSafeFile(context.Background(), path, nil, nil, o)
	},
}

// TestOnlyPlainFilesAreReplaced: a device or a pipe that a rename would replace is lost to the whole machine.
func TestOnlyPlainFilesAreReplaced(t *testing.T) {
	for name, write := range fileWriters {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			at := func(name string) string { return filepath.Join(dir, name) }
			require.NoError(t, syscall.Mkfifo(at("pipe"), 0o600))
			require.NoError(t, os.Mkdir(at("folder"), 0o700))
			require.NoError(t, os.Symlink("nowhere", at("link")))
			for _, target := range []string{"pipe", "folder", "link"} {
				before, err := os.Lstat(at(target))
				require.NoError(t, err)
				err = write(at(target), WriteOptions{Replace: true})
				require.EqualError(t, err, "checkpoint "+at(target)+": it exists and is no plain file: choose another name")
				after, err := os.Lstat(at(target))
				require.NoError(t, err)
				require.True(t, os.SameFile(before, after))
			}
			require.NoError(t, write(at("new/deep/file"), WriteOptions{}))
			require.NoError(t, write(at("new/deep/file"), WriteOptions{Replace: true}))
		})
	}
}

func TestTwoWritersOfOneFile(t *testing.T) {
	for name, write := range fileWriters {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			first, err := newFileStage(path, false)
			require.NoError(t, err)
			require.EqualError(t, write(path, WriteOptions{}),
				"checkpoint: "+path+": another process is writing it: wait for that one, or choose another name")
			first.discard()
			require.NoError(t, write(path, WriteOptions{}))
		})
	}
}

func TestFolderOnALinkIsRefusedFirst(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "folder"), 0o700))
	require.NoError(t, os.Symlink("folder", link))
	for _, replace := range []bool{false, true} {
		err := Write(context.Background(), link, State{}, WriteOptions{Replace: replace})
		require.EqualError(t, err, "checkpoint: "+link+": it exists and is no folder: choose another name")
	}
}

// TestPipesAreNotOpened: opening a pipe waits for a writer, and no signal ends that.
func TestPipesAreNotOpened(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"model.safetensors", "model.pt", "sub/model.safetensors"} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, syscall.Mkfifo(path, 0o600))
		_, err := OpenSource(path)
		require.EqualError(t, err, "checkpoint "+path+": no plain file")
	}
	_, err := OpenSource(filepath.Join(dir, "sub"))
	require.ErrorContains(t, err, "no plain file")
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, checksumName), 0o600))
	_, err = readChecksums(dir)
	require.ErrorContains(t, err, "no plain file")
}

func TestGlobFitsSlashes(t *testing.T) {
	for _, c := range []struct {
		glob, name string
		want       bool
	}{
		{"*etc*", "../../etc/passwd", true},
		{"layers.*", "layers.0/w", true},
		{"a?b", "a/b", true},
		{"a/*", "a/b/c", true},
		{"a/b", "a.b", false},
	} {
		got, err := globFits(c.glob, c.name)
		require.NoError(t, err)
		require.Equal(t, c.want, got, c)
	}
	_, err := globFits("[", "a")
	require.Error(t, err)
}

func TestShowKeepsANameOnItsLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.safetensors")
	fill := func(dst []byte, _ int64) error { return nil }
	require.NoError(t, writeSafetensors(path, []SafeSource{{"a\nkind: bytes", dtype.UInt8, []int64{1}, fill}}, nil))
	src, err := OpenSource(path)
	require.NoError(t, err)
	defer src.Close()
	var b bytes.Buffer
	require.NoError(t, Show(context.Background(), &b, src, "a\nkind: bytes", ShowOptions{}))
	require.Contains(t, b.String(), "fqn: \"a\\nkind: bytes\"\nkind: tensor\n")
}

// TestBareTensor: a file by torch.save may be one tensor, which has no name.
func TestBareTensor(t *testing.T) {
	dir := t.TempDir()
	bare := filepath.Join(fixtures, "..", "pt", "f8_torch_save_pt", "ckpt", "bare_tensor.pt")
	for _, to := range []Format{DCP, SafetensorsFiles, Torch} {
		out := filepath.Join(dir, string(to))
		require.NoError(t, Convert(context.Background(), bare, out, ConvertOptions{To: to}))
		src, err := OpenSource(out)
		require.NoError(t, err)
		want := "bare_tensor"
		if to == Torch {
			want = ""
		}
		require.Equal(t, want, src.Items()[0].FQN)
		src.Close()
	}
}

// TestKeptNamesNeedNoModel: files of safetensors whose names may not change are plain ones, whatever their model.
func TestKeptNamesNeedNoModel(t *testing.T) {
	in := filepath.Join(fixtures, "..", "hf", "f6d_safetensors_lib", "ckpt")
	out := filepath.Join(t.TempDir(), "out")
	require.ErrorContains(t, Convert(context.Background(), in, out, ConvertOptions{To: HuggingFace}), "names of no Llama")
	require.NoError(t, Convert(context.Background(), in, out, ConvertOptions{To: HuggingFace, MoveOptions: MoveOptions{KeepNames: true}}))
	a, err := OpenSource(in)
	require.NoError(t, err)
	defer a.Close()
	b, err := OpenSource(out)
	require.NoError(t, err)
	defer b.Close()
	found, n, err := Diff(context.Background(), a, b, DiffOptions{})
	require.NoError(t, err)
	require.Empty(t, found)
	require.Equal(t, len(a.Items()), n)
}

// TestInterruptedBeforeTheName: a signal that comes when the bytes are written still ends the work without a trace.
func TestInterruptedBeforeTheName(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	dir := t.TempDir()
	file, err := newFileStage(filepath.Join(dir, "file"), false)
	require.NoError(t, err)
	require.ErrorIs(t, file.commit(ctx), context.Canceled)
	folder, err := newStage(filepath.Join(dir, "folder"), false)
	require.NoError(t, err)
	require.ErrorIs(t, folder.commit(ctx), context.Canceled)
	folder.discard()
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}
