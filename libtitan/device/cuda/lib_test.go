package cuda

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"titan/libtitan/exit"
)

// system is a machine with the given files, of which some load.
func system(env map[string]string, files []string, loads ...string) finder {
	return finder{
		getenv: func(name string) string { return env[name] },
		glob: func(pattern string) []string {
			var out []string
			for _, f := range files {
				for at := f; at != "/" && at != "."; at = filepath.Dir(at) {
					if ok, _ := filepath.Match(pattern, at); ok && !slices.Contains(out, at) {
						out = append(out, at)
					}
				}
			}
			return out
		},
		open: func(path string) (uintptr, error) {
			if slices.Contains(loads, path) {
				return uintptr(1 + slices.Index(loads, path)), nil
			}
			if slices.Contains(files, path) {
				return 0, errors.New(path + ": file too short")
			}
			return 0, errors.New(path + ": cannot open shared object file: No such file or directory")
		},
	}
}

func TestLibraryByName(t *testing.T) {
	h, err := system(nil, nil, "libnvrtc.so.12").load(nvrtcLib)
	require.NoError(t, err)
	require.Equal(t, uintptr(1), h)
}

func TestLibraryInPipsFolders(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		file string
	}{
		"environment": {map[string]string{"VIRTUAL_ENV": "/v"}, "/v/lib/python3.12/site-packages/nvidia/cudnn/lib/libcudnn.so.9"},
		"conda":       {map[string]string{"CONDA_PREFIX": "/c"}, "/c/lib/python3.11/site-packages/nvidia/cudnn/lib/libcudnn.so.9"},
		"user":        {map[string]string{"HOME": "/h"}, "/h/.local/lib/python3.12/site-packages/nvidia/cudnn/lib/libcudnn.so.9"},
		"system":      {nil, "/usr/local/lib/python3.12/dist-packages/nvidia/cudnn/lib/libcudnn.so.9"},
		"toolkit":     {map[string]string{"CUDA_HOME": "/t"}, "/t/lib64/libcudnn.so.9"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := system(c.env, []string{c.file}, c.file).load(cudnnLib)
			require.NoError(t, err)
		})
	}
	// The python3 on the path says where its packages are.
	file := "/opt/x/.venv/lib/python3.12/site-packages/nvidia/cudnn/lib/libcudnn.so.9"
	f := system(map[string]string{"PATH": "/bin:/opt/x/.venv/bin"}, []string{file, "/opt/x/.venv/bin/python3"}, file)
	_, err := f.load(cudnnLib)
	require.NoError(t, err)
}

func TestMissingLibrarySaysWhereItLooked(t *testing.T) {
	_, err := system(nil, []string{"/usr/local/cuda/lib64/libother.so"}).load(cudnnLib)
	require.EqualError(t, err, "cuda: no cuDNN: looked for libcudnn.so.9 in the loader's path, /usr/local/cuda/lib64: pip install nvidia-cudnn-cu13, or install cuDNN 9, or set LD_LIBRARY_PATH")
	require.Equal(t, int(exit.Lost), exit.Code(err))
	require.NotContains(t, err.Error(), "\n")
}

// One that is there and does not load is not reported as absent.
func TestBrokenLibrarySaysWhatIsWrong(t *testing.T) {
	for _, file := range []string{"libcudnn.so.9", "/usr/local/cuda/lib64/libcudnn.so.9"} {
		_, err := system(nil, []string{file}).load(cudnnLib)
		require.EqualError(t, err, "cuda: the cuDNN found cannot be loaded: "+file+": file too short: pip install nvidia-cudnn-cu13, or install cuDNN 9")
	}
	// Another that loads is taken.
	good := "/usr/local/cuda/lib64/libcudnn.so.9"
	_, err := system(nil, []string{"libcudnn.so.9", good}, good).load(cudnnLib)
	require.NoError(t, err)
}

// Every kernel compiles for the GPUs that we know, where NVRTC can be found; no GPU is needed.
func TestKernelsCompile(t *testing.T) {
	r, err := openNVRTC(systemFinder())
	if err != nil {
		t.Skipf("SKIPPED: the kernels are not compiled here, make gpu compiles them: %v", err)
	}
	sources := common(true)
	for _, dt := range computed {
		for _, dim := range []int{33, 256, 4096, 16384 / dt.Size()} {
			row, err := rowsOf(dt, dim)
			require.NoError(t, err)
			sources = append(sources, row.kernels())
		}
		sources = append(sources, tiled{dt, 16, 64}.kernels(), tiled{dt, 128, 64}.kernels(), tiled{dt, 256, 32}.kernels())
	}
	for _, src := range sources {
		began := time.Now()
		o, err := r.compileFor("sm_90", src)
		require.NoError(t, err)
		t.Logf("%s: %d kernels, %d bytes, %v", src.file, len(src.kernels), len(o.cubin), time.Since(began))
		require.NotEmpty(t, o.cubin)
		for _, k := range src.kernels {
			require.NotEmpty(t, o.lowered[k], k)
		}
	}
	_, err = r.compileFor("sm_90", source{"bad.cu", "__global__ void f() { g(); }", []string{"f"}})
	require.ErrorContains(t, err, `cuda: compile bad.cu for sm_90: bad.cu(1): error: identifier "g" is undefined`)
	require.False(t, strings.Contains(err.Error(), "\n"))
}
