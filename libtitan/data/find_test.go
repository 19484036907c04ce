package data

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// names are the found files below dir.
func names(t *testing.T, dir string, paths, exclude []string) (found []string) {
	for i, p := range paths {
		paths[i] = filepath.Join(dir, p)
	}
	files, err := find(paths, exclude)
	require.NoError(t, err)
	for _, f := range files {
		name, err := filepath.Rel(dir, f.path)
		require.NoError(t, err)
		found = append(found, name)
	}
	return found
}

func TestFind(t *testing.T) {
	dir := write(t, map[string]string{
		"a.go": "a", "z.txt": "z", "b/b.go": "b", "b/b_test.go": "b", "b/c/c.go": "c", "b/testdata/t.go": "t",
		"go/parser/testdata/issue42951/not_a_file.go/invalid.go": "x", "net/net.go": "n",
		".git/x.go": "h", "b/.hidden.go": "h",
		"hf/data-00000-of-00001.arrow": "", "hf/dataset_info.json": "{}", "hf/state.json": "{}", "[1].txt": "1",
	})
	require.NoError(t, os.Symlink(filepath.Join(dir, "a.go"), filepath.Join(dir, "b/link.go")))
	require.NoError(t, os.Symlink(dir, filepath.Join(dir, "b/loop.go")))
	notAFile := "go/parser/testdata/issue42951/not_a_file.go/invalid.go"
	for _, c := range []struct {
		name           string
		paths, exclude []string
		want           []string
	}{
		{"a file", []string{"z.txt"}, nil, []string{"z.txt"}},
		{"a folder", []string{"b"}, nil, []string{"b/b.go", "b/b_test.go", "b/c/c.go", "b/link.go", "b/testdata/t.go"}},
		{"a folder named as a file", []string{"go/**/*.go"}, nil, []string{notAFile}},
		{"that folder itself", []string{"go/parser/testdata/issue42951/not_a_file.go"}, nil, []string{notAFile}},
		{"a glob of one level", []string{"*/*.go"}, nil, []string{"b/b.go", "b/b_test.go", "b/link.go", "net/net.go"}},
		{"any depth", []string{"**/*.go"}, []string{"testdata", "link.go"}, []string{"a.go", "b/b.go", "b/b_test.go", "b/c/c.go", "net/net.go"}},
		{"** inside", []string{"b/**/c.go"}, nil, []string{"b/c/c.go"}},
		{"** last", []string{"b/c/**"}, nil, []string{"b/c/c.go"}},
		{"exclude as a path below", []string{"**/*.go"}, []string{"b/**", "**/testdata/**"}, []string{"a.go", "net/net.go"}},
		{"exclude by name pattern", []string{"b"}, []string{"*_test.go", "l*.go", "testdata"}, []string{"b/b.go", "b/c/c.go"}},
		{"exclude by whole path", []string{"b", "net"}, []string{filepath.Join(dir, "b")}, []string{"net/net.go"}},
		{"the folder above is not excluded", []string{"net"}, []string{"net"}, []string{"net/net.go"}},
		{"twice the same", []string{"a.go", "*.go"}, nil, []string{"a.go"}},
		{"a saved Hugging Face dataset", []string{"hf"}, nil, []string{"hf/data-00000-of-00001.arrow"}},
		{"a name with brackets", []string{"[1].txt"}, nil, []string{"[1].txt"}},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, names(t, dir, c.paths, c.exclude)) })
	}
}

func TestFindBelowALink(t *testing.T) {
	dir := write(t, map[string]string{"real/a.txt": "a"})
	require.NoError(t, os.Symlink("real", filepath.Join(dir, "link")))
	require.Equal(t, []string{"link/a.txt"}, names(t, dir, []string{"link"}, nil))
	require.Equal(t, []string{"link/a.txt"}, names(t, dir, []string{"link/*.txt"}, nil))
}

func TestRelativePaths(t *testing.T) {
	t.Chdir(write(t, map[string]string{"a.txt": "a", "b/c.txt": "c"}))
	files, err := find([]string{"**/*.txt"}, nil)
	require.NoError(t, err)
	require.Len(t, files, 2)
	require.Equal(t, "a.txt", files[0].path)
	require.Equal(t, filepath.Join("b", "c.txt"), files[1].path)
}

func goSources(t testing.TB) Options {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	require.NoError(t, err)
	pattern := filepath.Join(strings.TrimSpace(string(root)), "src/**/*.go")
	return Options{Paths: []string{pattern}, Exclude: []string{"**/testdata/**"}, Tokenizer: byteTok(t), SeqLen: 256, Shuffle: true}
}

// The text that every Go machine has: thousands of files, and a folder that is called not_a_file.go.
func TestGoSources(t *testing.T) {
	o := goSources(t)
	start := time.Now()
	d := mustOpen(t, o)
	t.Logf("%d rows in %v", d.Rows(), time.Since(start))
	require.Greater(t, d.Rows(), int64(50_000))
	b, err := d.Batch(12345, 8)
	require.NoError(t, err)
	require.Equal(t, int64(8*256), b.Valid())
	o.Exclude = nil // not_a_file.go is there
	require.Greater(t, mustOpen(t, o).Rows(), d.Rows())
}

func BenchmarkOpenGoSources(b *testing.B) {
	o := goSources(b)
	for b.Loop() {
		_, err := Open(context.Background(), o)
		require.NoError(b, err)
	}
}

func BenchmarkBatch(b *testing.B) {
	dir := write(b, map[string]string{"a.txt": strings.Repeat("some text ", 1<<20)})
	for name, tok := range map[string]Options{"on demand": {Tokenizer: byteTok(b)}, "in memory": {Tokenizer: slowTok{byteTok(b)}}} {
		b.Run(name, func(b *testing.B) {
			tok.Paths, tok.SeqLen, tok.Shuffle = []string{dir}, 256, true
			d := mustOpen(b, tok)
			b.SetBytes(8 * 256)
			for i := 0; b.Loop(); i++ {
				_, err := d.Batch(int64(8*i), 8)
				require.NoError(b, err)
			}
		})
	}
}
