package data

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"titan/libtitan/exit"
	"titan/libtitan/tokenizer"
)

// byteTok has BOS 256 and EOS 257.
func byteTok(t testing.TB) tokenizer.Tokenizer {
	tok, err := tokenizer.Byte(2048)
	require.NoError(t, err)
	return tok
}

// slowTok is the byte tokenizer in another type, so that data takes the path of any other tokenizer.
type slowTok struct{ tokenizer.Tokenizer }

// write makes files below a new folder, named as the keys.
func write(t testing.TB, files map[string]string) string {
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return dir
}

func mustOpen(t testing.TB, o Options) *Dataset {
	d, err := Open(context.Background(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// tenDocuments are d0, d1d1, ... of 2 to 20 bytes.
func tenDocuments(t testing.TB) string {
	files := map[string]string{}
	for i := range 10 {
		files[fmt.Sprintf("%d.txt", i)] = strings.Repeat(fmt.Sprintf("d%d", i), i+1)
	}
	return write(t, files)
}

// The ten documents have 110 bytes and 20 BOS and EOS: with seq_len 12, ten rows of 13 tokens.
func TestPackingByHand(t *testing.T) {
	const bos, eos = 256, 257
	var all []int32
	for i := range 10 {
		all = append(all, bos)
		for range i + 1 {
			all = append(all, 'd', int32('0'+i))
		}
		all = append(all, eos)
	}
	for name, tok := range map[string]tokenizer.Tokenizer{"on demand": byteTok(t), "tokenised": slowTok{byteTok(t)}} {
		t.Run(name, func(t *testing.T) {
			d := mustOpen(t, Options{Paths: []string{tenDocuments(t)}, Tokenizer: tok, SeqLen: 12})
			require.Equal(t, int64(10), d.Rows())
			require.Equal(t, int64(130), d.stream.size())
			for row := range 10 {
				tokens, labels := make([]int32, 12), make([]int32, 12)
				require.NoError(t, d.Read(int64(row), tokens, labels))
				require.Equal(t, all[row*13:row*13+12], tokens, "row %d", row)
				require.Equal(t, all[row*13+1:row*13+13], labels, "row %d", row)
			}
			require.Equal(t, []int32{bos, 'd', '0', eos, bos, 'd', '1', 'd', '1', eos, bos, 'd'}, readRow(t, d, 0).Tokens)
			require.Equal(t, readRow(t, d, 3).Tokens, readRow(t, d, 13).Tokens, "the second epoch")
		})
	}
}

func readRow(t testing.TB, d *Dataset, row int64) *Batch {
	b, err := d.Batch(row, 1)
	require.NoError(t, err)
	return b
}

// What the byte tokenizer reads on demand is what any tokenizer would have stored, in memory or on disk.
func TestWaysOfHoldingTheStreamAgree(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		files := map[string]string{}
		for i, text := range rapid.SliceOfN(rapid.StringN(0, 40, -1), 1, 8).Draw(rt, "texts") {
			files[fmt.Sprintf("%d/%c.txt", i%3, 'a'+i)] = text + "."
		}
		tok, err := tokenizer.Byte(rapid.SampledFrom([]int{256, 257, 258, 1 << 16}).Draw(rt, "vocabulary"))
		require.NoError(rt, err)
		o := Options{Paths: []string{write(t, files)}, Tokenizer: tok, SeqLen: rapid.IntRange(1, 9).Draw(rt, "seqLen"), Shuffle: true}
		onDemand, err := Open(context.Background(), o)
		if err != nil {
			return // too short for a row
		}
		o.Tokenizer = slowTok{tok}
		inMemory := mustOpen(t, o)
		o.MaxMemory = 1
		onDisk := mustOpen(t, o)
		require.Equal(rt, onDemand.Rows(), inMemory.Rows())
		for row := range 2 * onDemand.Rows() {
			want := readRow(t, onDemand, row)
			require.Equal(rt, want, readRow(t, inMemory, row))
			require.Equal(rt, want, readRow(t, onDisk, row))
		}
	})
}

// A store of more than a chunk, read across the seams, in memory and spilled.
func TestStoreAcrossChunks(t *testing.T) {
	for _, width := range []int{1 << 10, 1 << 20} {
		for _, maxBytes := range []int64{1 << 30, 2 * chunkBytes} {
			s := newStore(width, maxBytes)
			const n = 3*chunkBytes/2 + 12345
			ids := make([]int32, n)
			for i := range ids {
				ids[i] = int32(i % 1000)
				if i%7 == 0 {
					ids[i] = ^ids[i]
				}
			}
			require.NoError(t, s.append(ids[:n/3]))
			require.NoError(t, s.append(ids[n/3:]))
			require.NoError(t, s.finish())
			require.Equal(t, s.width*n > 2*chunkBytes && maxBytes < 1<<30, s.file != nil)
			got := make([]int32, n)
			require.NoError(t, s.read(got, 0))
			require.Equal(t, ids, got)
			require.NoError(t, s.read(got[:100], chunkBytes/int64(s.width)-50))
			require.Equal(t, ids[chunkBytes/s.width-50:chunkBytes/s.width+50], got[:100])
			require.NoError(t, s.close())
		}
	}
}

// Every row is read once an epoch, whatever the data-parallel degree and the accumulation.
func TestEpochCoversEachRowOnce(t *testing.T) {
	distinct := make([]byte, 26*5-2) // so that no two rows are the same
	for i := range distinct {
		distinct[i] = byte(i)
	}
	dir := write(t, map[string]string{"a.txt": string(distinct)})
	d := mustOpen(t, Options{Paths: []string{dir}, Tokenizer: byteTok(t), SeqLen: 4, Shuffle: true, Seed: 7})
	require.Equal(t, int64(26), d.Rows())
	var want []uint64 // hashes of the steps of 8 rows by one rank
	for _, c := range []struct{ ranks, local, microsteps int }{{1, 8, 1}, {1, 4, 2}, {2, 4, 1}, {2, 2, 2}, {4, 2, 1}, {8, 1, 1}} {
		seen := map[string]int{}
		var hashes []uint64
		for step := int64(0); step < 4*26; step += 8 { // four epochs
			sum := uint64(0)
			for micro := range c.microsteps {
				for rank := range c.ranks {
					b, err := d.Batch(Share{rank, c.ranks, c.local}.First(step, micro), c.local)
					require.NoError(t, err)
					sum += b.Hash()
					for i := range b.Rows {
						seen[fmt.Sprint(b.Tokens[i*4:i*4+4], b.Labels[i*4:i*4+4])]++
					}
				}
			}
			hashes = append(hashes, sum)
		}
		require.Len(t, seen, 26)
		for row, n := range seen {
			require.Equal(t, 4, n, "row %s with %+v", row, c)
		}
		if want == nil {
			want = hashes
		}
		require.Equal(t, want, hashes, "%+v", c)
	}
}

// Positions are enough to resume: a new dataset, and another degree, go on with the same batches.
func TestResume(t *testing.T) {
	o := Options{Paths: []string{tenDocuments(t)}, Tokenizer: byteTok(t), SeqLen: 4, Shuffle: true, Seed: 1}
	straight, resumed := mustOpen(t, o), mustOpen(t, o)
	require.Equal(t, straight.Fingerprint(), resumed.Fingerprint())
	for position := int64(12); position < 60; position += 4 {
		a, err := straight.Batch(position, 4)
		require.NoError(t, err)
		b, err := resumed.Batch(position, 2)
		require.NoError(t, err)
		c, err := resumed.Batch(position+2, 2)
		require.NoError(t, err)
		require.Equal(t, a.Hash(), b.Hash()+c.Hash())
	}
}

func TestHashTellsRowsAndOrderApart(t *testing.T) {
	b := Batch{Rows: 2, SeqLen: 2, Tokens: []int32{1, 2, 3, 4}, Labels: []int32{2, 3, 4, 5}}
	seen := map[uint64]string{b.Hash(): "as it is"}
	for name, c := range map[string]Batch{
		"rows swapped":   {Rows: 2, SeqLen: 2, Tokens: []int32{3, 4, 1, 2}, Labels: []int32{4, 5, 2, 3}},
		"tokens swapped": {Rows: 2, SeqLen: 2, Tokens: []int32{2, 1, 3, 4}, Labels: []int32{3, 2, 4, 5}},
		"a label masked": {Rows: 2, SeqLen: 2, Tokens: []int32{1, 2, 3, 4}, Labels: []int32{2, 3, 4, Ignored}},
		"elsewhere":      {First: 5, Rows: 2, SeqLen: 2, Tokens: []int32{1, 2, 3, 4}, Labels: []int32{2, 3, 4, 5}},
	} {
		require.NotContains(t, seen, c.Hash(), name)
		seen[c.Hash()] = name
	}
}

func TestSeedAndEpochChangeTheOrder(t *testing.T) {
	dir := tenDocuments(t)
	order := func(seed uint64, epoch int64) (rows []string) {
		d := mustOpen(t, Options{Paths: []string{dir}, Tokenizer: byteTok(t), SeqLen: 4, Shuffle: true, Seed: seed})
		for i := range d.Rows() {
			rows = append(rows, fmt.Sprint(readRow(t, d, epoch*d.Rows()+i).Tokens))
		}
		return rows
	}
	base := order(1, 0)
	for _, other := range [][]string{order(2, 0), order(1, 1)} {
		require.NotEqual(t, base, other)
		require.ElementsMatch(t, base, other)
	}
}

func TestPermuteIsABijection(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(1, 3000).Draw(t, "n")
		key := rapid.Uint64().Draw(t, "key")
		seen := make([]bool, n)
		for i := range n {
			to := permute(i, n, key)
			require.True(t, 0 <= to && to < n && !seen[to], "%d -> %d", i, to)
			seen[to] = true
		}
	})
	require.Less(t, permute(1<<40, 1<<40+3, 9), int64(1<<40+3))
}

func TestFileThatChangesIsNoticed(t *testing.T) {
	dir := write(t, map[string]string{"a.txt": "some words of text"})
	d := mustOpen(t, Options{Paths: []string{dir}, Tokenizer: byteTok(t), SeqLen: 4})
	path := filepath.Join(dir, "a.txt")
	for name, change := range map[string]func(){
		"longer":    func() { require.NoError(t, os.WriteFile(path, []byte("some words of text, and more"), 0o644)) },
		"touched":   func() { require.NoError(t, os.Chtimes(path, time.Time{}, time.Now().Add(time.Hour))) },
		"no longer": func() { require.NoError(t, os.Remove(path)) },
	} {
		change()
		_, err := d.Batch(0, 1)
		require.ErrorContains(t, err, path, name)
		require.Equal(t, int(exit.Input), exit.Code(err), name)
		if name != "no longer" {
			require.ErrorContains(t, err, "changed since the run began")
		} else {
			require.NoError(t, os.WriteFile(path, nil, 0o644))
		}
	}
}

func TestFingerprint(t *testing.T) {
	base := Options{Paths: []string{tenDocuments(t)}, Tokenizer: byteTok(t), SeqLen: 4}
	moved, longer, other, fewer := base, base, base, base
	moved.Paths = []string{tenDocuments(t)}
	longer.SeqLen = 5
	other.Tokenizer, _ = tokenizer.Byte(256)
	fewer.Exclude = []string{"3.txt"}
	want := mustOpen(t, base).Fingerprint()
	require.Equal(t, want, mustOpen(t, moved).Fingerprint())
	for _, o := range []Options{longer, other, fewer} {
		require.NotEqual(t, want, mustOpen(t, o).Fingerprint())
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := write(t, map[string]string{"empty.txt": "", "short.txt": "abc", "sub/x.txt": "y"})
	for _, c := range []struct {
		name    string
		paths   []string
		exclude []string
		want    string
	}{
		{"no paths", nil, nil, "no files"},
		{"a missing file", []string{dir + "/nope.txt"}, nil, "no such file"},
		{"a pattern without match", []string{dir + "/**/*.go"}, nil, "no file there"},
		{"all excluded", []string{dir}, []string{"*"}, "no files"},
		{"a broken pattern", []string{dir + "/[a"}, nil, "syntax error in pattern"},
		{"an empty file", []string{dir + "/empty.txt"}, nil, "empty.txt: 2 tokens, but one row of seq_len+1 needs 17"},
		{"too few tokens", []string{dir}, nil, "3 files"},
		{"a device", []string{"/dev/null"}, nil, "not a file or folder"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Open(context.Background(), Options{Paths: c.paths, Exclude: c.exclude, Tokenizer: byteTok(t), SeqLen: 16})
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "\n")
			require.Equal(t, int(exit.Input), exit.Code(err))
		})
	}
}

func TestOpenStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := Open(ctx, Options{Paths: []string{tenDocuments(t)}, Tokenizer: slowTok{byteTok(t)}, SeqLen: 4})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, int(exit.Interrupted), exit.Code(err))
}

func TestNoPlaceForTheTemporaryFile(t *testing.T) {
	o := Options{Paths: []string{tenDocuments(t)}, Tokenizer: slowTok{byteTok(t)}, SeqLen: 4, MaxMemory: 1}
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "missing"))
	_, err := Open(context.Background(), o)
	require.ErrorIs(t, err, os.ErrNotExist)
}
