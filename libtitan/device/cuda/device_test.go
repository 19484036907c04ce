package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
)

func TestOpenSaysWhatIsMissing(t *testing.T) {
	d, err := Open(0)
	if err != nil {
		require.ErrorContains(t, err, "cuda: ")
		return
	}
	require.NotEmpty(t, d.Name)
	require.Positive(t, d.SMs)
	require.Positive(t, d.TotalBytes)
	t.Logf("%v, %d MiB, driver %d", d, d.TotalBytes>>20, d.Driver)
	require.NoError(t, d.Close())
	_, err = Open(99)
	require.ErrorContains(t, err, "cuda: no GPU 99: this process sees ")
}

func TestErrorsNameTheCall(t *testing.T) {
	e := gpu(t)
	_, err := e.Alloc(1 << 50)
	require.EqualError(t, err, "cuda: cuMemAlloc of 1073741824 MiB: OUT_OF_MEMORY (2)")
	_, err = e.bind("nothing", grid{x: 1, threads: 1}, nil)
	require.ErrorContains(t, err, "no kernel nothing")
}

// Pinned memory, events, copies of rows, and a graph that does it all again.
func TestStream(t *testing.T) {
	e := gpu(t)
	const rows, width = 5, 12
	h, err := e.AllocHost(4 * rows * width)
	require.NoError(t, err)
	defer func() { require.NoError(t, h.Free()) }()
	x := HostOf[float32](h, 0, rows*width)
	want := make([]float64, 0, rows*4)
	for i := range x {
		x[i] = float32(i)
		if i%width >= 3 && i%width < 7 {
			want = append(want, float64(i))
		}
	}
	wideRows, narrow := blank(t, e, dtype.Float32, rows*width), blank(t, e, dtype.Float32, rows*4)
	work := func() error {
		if err := e.Stream.Upload(wideRows.p, h, 0, 4*rows*width); err != nil {
			return err
		}
		return e.Stream.CopyRows(narrow.p, 4*4, wideRows.p+3*4, 4*width, 4*4, rows)
	}
	begin, err := e.NewEvent(true)
	require.NoError(t, err)
	end, err := e.NewEvent(true)
	require.NoError(t, err)
	require.NoError(t, e.Stream.Record(begin))
	require.NoError(t, work())
	require.NoError(t, e.Stream.Record(end))
	require.NoError(t, end.Sync())
	done, err := end.Done()
	require.NoError(t, err)
	require.True(t, done)
	ms, err := end.Since(begin)
	require.NoError(t, err)
	require.Positive(t, ms)
	near(t, want, narrow, 0, "rows")

	g, err := e.Stream.Capture(work)
	require.NoError(t, err)
	require.Equal(t, 2, g.Nodes)
	for i := range x {
		x[i] *= 2
	}
	for i := range want {
		want[i] *= 2
	}
	other, err := e.NewStream(true)
	require.NoError(t, err)
	require.NoError(t, other.Wait(end))
	require.NoError(t, other.Launch(g))
	require.NoError(t, other.Sync())
	near(t, want, narrow, 0, "rows again")
	for _, c := range []interface{ Close() error }{g, other, begin, end} {
		require.NoError(t, c.Close())
	}
}

// What a kernel is given lies as it reads it.
func TestPack(t *testing.T) {
	require.Equal(t, args{1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x3f, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0}, pack(Ptr(1), float32(1), 2, true))
}
