package checkpoint

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// partOf is what goes to one file of s.
func partOf(s State, file int) (part State) {
	for _, o := range s.Objects {
		if o.File == file {
			part.Objects = append(part.Objects, o)
		}
	}
	for _, t := range s.Tensors {
		t.Chunks = slices.DeleteFunc(slices.Clone(t.Chunks), func(c Chunk) bool { return c.File != file })
		part.Tensors = append(part.Tensors, t)
	}
	return part
}

// planned is s without what its chunks hold.
func planned(s State) State {
	for i, t := range s.Tensors {
		s.Tensors[i].Chunks = slices.Clone(t.Chunks)
		for j := range t.Chunks {
			s.Tensors[i].Chunks[j].Fill = nil
		}
	}
	return s
}

// shared begins dir and writes the two parts of bigState.
func shared(t *testing.T, dir string) (*Shared, [][]uint32) {
	f, err := Begin(dir, true)
	require.NoError(t, err)
	crcs := make([][]uint32, 3) // the third has nothing to write
	for file := range crcs {
		part := partOf(bigState(), file)
		crcs[file], err = WritePart(context.Background(), dir, part, WriteOptions{})
		require.NoError(t, err)
		require.Len(t, crcs[file], part.NumItems(file))
	}
	return f, crcs
}

// Parts by several writers make the bytes that one writer makes of all.
func TestPartsMakeTheBytesOfAWhole(t *testing.T) {
	parent := t.TempDir()
	whole, dir := filepath.Join(parent, "whole"), filepath.Join(parent, "step-5")
	require.NoError(t, Write(context.Background(), whole, bigState(), WriteOptions{}))
	for range 2 { // the second takes the place of the first
		f, crcs := shared(t, dir)
		require.NoError(t, f.Seal(context.Background(), planned(bigState()), crcs))
		require.Equal(t, readFolder(t, whole), readFolder(t, dir))
		require.Equal(t, []string{"step-5", "whole"}, names(t, parent))
	}
	v, err := Verify(context.Background(), dir, VerifyOptions{Deep: true}, func(string) error { return nil })
	require.NoError(t, err)
	require.Zero(t, v.Faults)
}

// Whatever is missing, nothing gets the name, and what had it stays.
func TestPartsThatAreMissing(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "step-5")
	f, crcs := shared(t, dir)
	require.NoError(t, f.Seal(context.Background(), planned(bigState()), crcs))
	before := readFolder(t, dir)
	for want, spoil := range map[string]func(file string, crcs [][]uint32){
		"rank 1 has written, is not there: all ranks must see one folder": func(file string, _ [][]uint32) { require.NoError(t, os.Remove(file)) },
		"rank 1 has written, has 7 bytes of ":                             func(file string, _ [][]uint32) { require.NoError(t, os.Truncate(file, 7)) },
		"__1_0.distcp: 1 items were written, 2 were planned":              func(_ string, crcs [][]uint32) { crcs[1] = crcs[1][:1] },
	} {
		f, crcs := shared(t, dir)
		spoil(filepath.Join(parent, ".step-5.partial", "__1_0.distcp"), crcs)
		require.ErrorContains(t, f.Seal(context.Background(), planned(bigState()), crcs), want)
		f.Discard()
		require.Equal(t, before, readFolder(t, dir))
		require.Equal(t, []string{"step-5"}, names(t, parent))
	}
	f, crcs = shared(t, dir)
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, f.Seal(cancelled, planned(bigState()), crcs), context.Canceled)
	f.Discard()
	require.Equal(t, before, readFolder(t, dir))
}

// A part goes nowhere but into the folder in the making, and not over another.
func TestPartsWithoutAFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "step-5")
	_, err := WritePart(context.Background(), dir, partOf(bigState(), 1), WriteOptions{})
	require.ErrorContains(t, err, ".step-5.partial is not there, which another rank has made: all ranks must see one folder")
	f, _ := shared(t, dir)
	defer f.Discard()
	_, err = WritePart(context.Background(), dir, partOf(bigState(), 1), WriteOptions{})
	require.ErrorIs(t, err, os.ErrExist)
	full := partOf(bigState(), 0)
	full.Tensors[0].Chunks[0].Fill = func([]byte, int64) error { return syscall.ENOSPC }
	require.NoError(t, os.Remove(filepath.Join(f.stage.tmp, "__0_0.distcp")))
	_, err = WritePart(context.Background(), dir, full, WriteOptions{})
	require.ErrorIs(t, err, syscall.ENOSPC)
	_, err = Begin(dir, true)
	require.ErrorContains(t, err, "another process is writing it")
}
