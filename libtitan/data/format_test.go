package data

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/apache/arrow/go/v17/parquet"
	"github.com/apache/arrow/go/v17/parquet/compress"
	"github.com/apache/arrow/go/v17/parquet/file"
	"github.com/apache/arrow/go/v17/parquet/schema"
	"github.com/stretchr/testify/require"

	"titan/libtitan/exit"
)

const testdata = "../../testdata/text"

// documents reads a whole file.
func documents(path string) (docs []document, err error) {
	err = formatOf(path).read(path, func(d document) error {
		d.where = ""
		docs = append(docs, d)
		return nil
	})
	return docs, err
}

// Files of other writers: apache-arrow (npm, JavaScript) and parquet-wasm (npm, the Rust parquet crate).
func TestFilesOfOtherWriters(t *testing.T) {
	text := []string{"The first document.", "", "Zażółć — third\nwith two lines"}
	for _, name := range []string{"text.arrow", "text-zstd.parquet"} {
		docs, err := documents(filepath.Join(testdata, name))
		require.NoError(t, err, name)
		require.Len(t, docs, 3, name)
		for i, d := range docs {
			require.Equal(t, text[i], string(d.text), name)
			require.Nil(t, d.ids, name)
		}
	}
	for _, name := range []string{"ids.arrow", "ids-snappy.parquet"} {
		docs, err := documents(filepath.Join(testdata, name))
		require.NoError(t, err, name)
		require.Equal(t, []document{
			{ids: []int32{1, 2, 3, 4, 5}, labels: []int32{-100, -100, 3, 4, -100}},
			{ids: []int32{}, labels: []int32{}},
			{ids: []int32{300, 301}, labels: []int32{300, -100}},
		}, docs, name)
	}
}

func TestEveryFormatGivesTheSameRows(t *testing.T) {
	text := []string{"one", "two and more", "", "three"}
	dir := write(t, map[string]string{
		"text/0.txt": text[0], "text/1.txt": text[1], "text/2.md": text[2], "text/3": text[3],
		"jsonl/a.jsonl":     "{\"text\": \"one\", \"id\": 7}\n\n{\"id\": {\"text\": 1}, \"text\":\"two and more\"}\r\n",
		"jsonl/b.json":      `{"text":""}` + "\n" + `{"text":"\u0074hree"}`,
		"ids/a.jsonl":       "{\"input_ids\":[256,111,110,101,257]}\n{\"input_ids\":[256,116,119,111,32,97,110,100,32,109,111,114,101,257]}",
		"ids/b.jsonl":       "{\"input_ids\":[256]}\n{\"input_ids\":[257,256,116,104],\"text\":\"not this\"}\n{\"input_ids\":[]}\n{\"input_ids\":[114,101,101,257]}",
		"arrow/a.arrow":     string(arrowText(t, array.NewStringBuilder(memory.DefaultAllocator), text)),
		"arrow2/a.arrow":    string(arrowText(t, array.NewLargeStringBuilder(memory.DefaultAllocator), text)),
		"parquet/a.parquet": string(parquetText(t, text, compress.Codecs.Gzip, true)),
	})
	var want []int32
	for i, folder := range []string{"text", "jsonl", "ids", "arrow", "arrow2", "parquet"} {
		d := mustOpen(t, Options{Paths: []string{filepath.Join(dir, folder)}, Tokenizer: byteTok(t), SeqLen: 4})
		require.Equal(t, int64(28), d.stream.size(), folder)
		b, err := d.Batch(0, int(d.Rows()))
		require.NoError(t, err)
		if i == 0 {
			want = b.Tokens
		}
		require.Equal(t, want, b.Tokens, folder)
	}
}

// arrowText is a stream of two record batches, as the datasets library writes it.
func arrowText(t testing.TB, b array.StringLikeBuilder, text []string) []byte {
	var buf bytes.Buffer
	s := arrow.NewSchema([]arrow.Field{{Name: "text", Type: b.Type(), Nullable: true}}, nil)
	w := ipc.NewWriter(&buf, ipc.WithSchema(s), ipc.WithZstd())
	for _, part := range [][]string{text[:1], text[1:]} {
		for _, s := range part {
			b.Append(s)
		}
		column := b.NewArray()
		require.NoError(t, w.Write(array.NewRecord(s, []arrow.Array{column}, int64(len(part)))))
	}
	require.NoError(t, w.Close())
	return buf.Bytes()
}

// parquetText is a file of two row groups with pages of a few rows.
func parquetText(t testing.TB, text []string, codec compress.Compression, dictionary bool) []byte {
	var buf bytes.Buffer
	leaf, err := schema.NewPrimitiveNodeLogical("text", parquet.Repetitions.Optional, schema.StringLogicalType{}, parquet.Types.ByteArray, -1, -1)
	require.NoError(t, err)
	id := schema.NewInt64Node("id", parquet.Repetitions.Required, -1)
	root, err := schema.NewGroupNode("schema", parquet.Repetitions.Required, schema.FieldList{id, leaf}, -1)
	require.NoError(t, err)
	props := parquet.NewWriterProperties(parquet.WithCompression(codec), parquet.WithDictionaryDefault(dictionary), parquet.WithDataPageSize(512), parquet.WithBatchSize(16))
	w := file.NewParquetWriter(&buf, root, file.WithWriterProps(props))
	half := (len(text) + 1) / 2
	for _, part := range [][]string{text[:half], text[half:]} {
		g := w.AppendRowGroup()
		c, err := g.NextColumn()
		require.NoError(t, err)
		_, err = c.(*file.Int64ColumnChunkWriter).WriteBatch(make([]int64, len(part)), nil, nil)
		require.NoError(t, err)
		require.NoError(t, c.Close())
		c, err = g.NextColumn()
		require.NoError(t, err)
		values, def := make([]parquet.ByteArray, len(part)), make([]int16, len(part))
		for i, s := range part {
			values[i], def[i] = parquet.ByteArray(s), 1
		}
		_, err = c.(*file.ByteArrayColumnChunkWriter).WriteBatch(values, def, nil)
		require.NoError(t, err)
		require.NoError(t, c.Close())
		require.NoError(t, g.Close())
	}
	require.NoError(t, w.Close())
	return buf.Bytes()
}

// Many pages and row groups, every codec that the module has, plain and dictionary.
func TestParquetPagesAndCodecs(t *testing.T) {
	var text []string
	for i := range 600 {
		text = append(text, strings.Repeat(fmt.Sprintf("%d,", i%170), i%9))
	}
	for _, codec := range []compress.Compression{compress.Codecs.Uncompressed, compress.Codecs.Snappy, compress.Codecs.Zstd, compress.Codecs.Gzip, compress.Codecs.Brotli} {
		for _, dictionary := range []bool{false, true} {
			path := filepath.Join(t.TempDir(), "a.parquet")
			require.NoError(t, os.WriteFile(path, parquetText(t, text, codec, dictionary), 0o644))
			docs, err := documents(path)
			require.NoError(t, err, codec)
			require.Len(t, docs, len(text))
			for i, d := range docs {
				require.Equal(t, text[i], string(d.text), "row %d", i)
			}
		}
	}
}

// cases.md 17 and 18: labels that mask all but one token of one row, and all of another. A token's own label says
// whether it is learned; it is predicted from the position before.
func TestLabelMask(t *testing.T) {
	dir := write(t, map[string]string{"a.jsonl": `{"input_ids":[1,2,3,4,5],"labels":[-100,-100,3,-100,-100]}
{"input_ids":[6,7,8,9,10],"labels":[-100,-100,-100,-100,-100]}
{"input_ids":[11,12,13,14,15]}
`})
	b, err := mustOpen(t, Options{Paths: []string{dir}, Tokenizer: byteTok(t), SeqLen: 4}).Batch(0, 3)
	require.NoError(t, err)
	require.Equal(t, []int32{1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 14}, b.Tokens)
	require.Equal(t, []int32{-100, 3, -100, -100, -100, -100, -100, -100, 12, 13, 14, 15}, b.Labels)
	require.Equal(t, int64(5), b.Valid())
}

func TestBadFiles(t *testing.T) {
	arrowFile, err := os.ReadFile(filepath.Join(testdata, "text.arrow"))
	require.NoError(t, err)
	parquetFile, err := os.ReadFile(filepath.Join(testdata, "ids-snappy.parquet"))
	require.NoError(t, err)
	forged := append([]byte(nil), arrowFile...)
	copy(forged[4:], "\xff\xff\xff\x7f") // a schema of 2 GiB
	int64Column := func() []byte {
		b := array.NewInt64Builder(memory.DefaultAllocator)
		b.Append(1)
		return arrowRecord(t, "text", b.NewArray())
	}
	list := func(null bool) []byte {
		b := array.NewListBuilder(memory.DefaultAllocator, arrow.PrimitiveTypes.Int64)
		b.Append(!null)
		if !null {
			b.ValueBuilder().(*array.Int64Builder).Append(1 << 40)
		}
		return arrowRecord(t, "input_ids", b.NewArray())
	}
	nullText := func() []byte {
		b := array.NewStringBuilder(memory.DefaultAllocator)
		b.AppendNull()
		return arrowRecord(t, "text", b.NewArray())
	}
	for _, c := range []struct{ name, file, content, want string }{
		{"not JSON", "a.jsonl", "{\"text\":\"x\"}\n{\"text\":", "a.jsonl:2: unexpected end"},
		{"not an object", "a.json", "[\n{\"text\": 1}]", "a.json:1: not a JSON object"},
		{"no field", "a.jsonl", "\n\n{\"content\":\"x\"}", `a.jsonl:3: neither "text" nor "input_ids"`},
		{"text is a number", "a.jsonl", `{"text": 5}`, "a.jsonl:1: "},
		{"text is null", "a.jsonl", `{"text": null}`, "a.jsonl:1: neither"},
		{"id of 2^40", "a.jsonl", `{"input_ids":[1099511627776]}`, "a.jsonl:1: "},
		{"negative id", "a.jsonl", `{"input_ids":[-1]}`, "a.jsonl:1: input_ids[0] is -1, outside the vocabulary of 2048"},
		{"id outside the vocabulary", "a.jsonl", "{\"text\":\"\"}\n{\"input_ids\":[2047,2048]}", "a.jsonl:2: input_ids[1] is 2048"},
		{"labels of another length", "a.jsonl", `{"input_ids":[1,2],"labels":[1]}`, "1 labels for 2 input_ids"},
		{"labels shifted in the file", "a.jsonl", `{"input_ids":[1,2],"labels":[2,-100]}`, "labels[0] is 2, neither input_ids[0] = 1 nor -100"},
		{"empty Arrow", "a.arrow", "", "EOF"},
		{"not Arrow", "a.arrow", "just some text", "not an Arrow IPC stream"},
		{"Arrow file format", "a.arrow", "ARROW1\x00\x00....", "not a stream"},
		{"Arrow cut in the schema", "a.arrow", string(arrowFile[:60]), "truncated"},
		{"Arrow cut in a batch", "a.arrow", string(arrowFile[:len(arrowFile)-30]), "truncated"},
		{"forged length", "a.arrow", string(forged), "truncated: 2147483647 bytes of a message expected"},
		{"text of another type", "a.arrow", string(int64Column()), "column text has type int64"},
		{"null text", "a.arrow", string(nullText()), "row 1: a null"},
		{"null list", "a.arrow", string(list(true)), "row 1: input_ids: a null"},
		{"id too large", "a.arrow", string(list(false)), "row 1: input_ids: element 0"},
		{"no column", "a.arrow", string(arrowRecord(t, "content", array.NewStringBuilder(memory.DefaultAllocator).NewArray())), "neither a text nor an input_ids column"},
		{"empty Parquet", "a.parquet", "", "too small"},
		{"not Parquet", "a.parquet", strings.Repeat("x", 100), "smaller than"},
		{"Parquet without its start", "a.parquet", string(parquetFile[400:]), ""},
		{"Parquet without its end", "a.parquet", string(parquetFile[:400]), "smaller than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := write(t, map[string]string{c.file: c.content})
			_, err := Open(context.Background(), Options{Paths: []string{dir}, Tokenizer: byteTok(t), SeqLen: 4})
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, filepath.Join(dir, c.file))
			require.NotContains(t, err.Error(), "\n")
			require.Equal(t, int(exit.Input), exit.Code(err))
		})
	}
}

// arrowRecord is a stream of one column.
func arrowRecord(t testing.TB, name string, column arrow.Array) []byte {
	var buf bytes.Buffer
	s := arrow.NewSchema([]arrow.Field{{Name: name, Type: column.DataType(), Nullable: true}}, nil)
	w := ipc.NewWriter(&buf, ipc.WithSchema(s))
	require.NoError(t, w.Write(array.NewRecord(s, []arrow.Array{column}, int64(column.Len()))))
	require.NoError(t, w.Close())
	return buf.Bytes()
}

func FuzzParseLine(f *testing.F) {
	f.Add([]byte(`{"text":"a\u00e9\n"}`))
	f.Add([]byte(`{"input_ids":[1,2,3],"labels":[-100,2,3]}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		if len(line) == 0 {
			return
		}
		d, err := parseLine(line)
		if err != nil {
			return
		}
		tokens, err := encode(byteTok(t), []document{d})
		if err != nil {
			return
		}
		if d.ids == nil {
			require.Len(t, tokens, len(d.text)+2)
		} else {
			require.Len(t, tokens, len(d.ids))
		}
	})
}

// fuzzFormat holds a reader to its word: documents or an error of one line, whatever the bytes.
func fuzzFormat(f *testing.F, extension string) {
	seeds, err := filepath.Glob(filepath.Join(testdata, "*"+extension))
	require.NoError(f, err)
	require.NotEmpty(f, seeds)
	for _, seed := range seeds {
		b, err := os.ReadFile(seed)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "a"+extension)
		require.NoError(t, os.WriteFile(path, b, 0o644))
		if _, err := documents(path); err != nil {
			require.NotContains(t, err.Error(), "\n")
			require.Equal(t, int(exit.Input), exit.Code(err))
		}
	})
}

func FuzzArrow(f *testing.F)   { fuzzFormat(f, ".arrow") }
func FuzzParquet(f *testing.F) { fuzzFormat(f, ".parquet") }
