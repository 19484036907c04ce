package cuda

import (
	"cmp"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ebitengine/purego"

	"titan/libtitan/exit"
)

// library is one of NVIDIA's shared libraries.
type library struct {
	name    string   // as people call it
	sonames []string // the newest first
	fix     string   // how to get it
}

var (
	driverLib   = library{"NVIDIA driver", []string{"libcuda.so.1"}, "install NVIDIA's driver"}
	nvrtcLib    = library{"NVRTC", []string{"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"}, "pip install nvidia-cuda-nvrtc, or install the CUDA toolkit"}
	cublasLtLib = library{"cuBLASLt", []string{"libcublasLt.so.13", "libcublasLt.so.12"}, "pip install nvidia-cublas, or install the CUDA toolkit"}
	cudnnLib    = library{"cuDNN", []string{"libcudnn.so.9"}, "pip install nvidia-cudnn-cu13, or install cuDNN 9"}
)

// finder looks for libraries; tests put other eyes in.
type finder struct {
	getenv func(string) string
	glob   func(string) []string
	open   func(path string) (uintptr, error)
}

func systemFinder() finder {
	return finder{os.Getenv, func(pattern string) []string {
		found, _ := filepath.Glob(pattern)
		return found
	}, func(path string) (uintptr, error) {
		return purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	}}
}

// folders are where libraries lie that the loader's own path does not know: the toolkit, and the nvidia packages of
// the Python that is in use.
func (f finder) folders() []string {
	patterns := []string{"/usr/local/cuda/lib64", "/usr/local/cuda/targets/*-linux/lib", "/usr/local/nvidia/lib64"}
	for _, home := range []string{f.getenv("CUDA_HOME"), f.getenv("CUDA_PATH")} {
		if home != "" {
			patterns = append([]string{filepath.Join(home, "lib64")}, patterns...)
		}
	}
	for _, site := range f.sitePackages() {
		patterns = append(patterns, filepath.Join(site, "nvidia", "*", "lib"))
	}
	var out []string
	for _, p := range patterns {
		out = append(out, f.glob(p)...)
	}
	return out
}

// sitePackages are patterns of the folders in which pip installs: of the active environment, of the python3 on the
// path, of the user, of the system.
func (f finder) sitePackages() []string {
	var roots []string
	for _, prefix := range []string{f.getenv("VIRTUAL_ENV"), f.getenv("CONDA_PREFIX")} {
		if prefix != "" {
			roots = append(roots, prefix)
		}
	}
	for _, dir := range filepath.SplitList(f.getenv("PATH")) {
		if len(f.glob(filepath.Join(dir, "python3"))) > 0 {
			roots = append(roots, filepath.Dir(dir))
			break
		}
	}
	if home := f.getenv("HOME"); home != "" {
		roots = append(roots, filepath.Join(home, ".local"))
	}
	var out []string
	for _, r := range append(roots, "/usr/local", "/usr") {
		out = append(out, filepath.Join(r, "lib/python3*/site-packages"), filepath.Join(r, "lib/python3*/dist-packages"))
	}
	return out
}

// load opens l: by its name, then in each folder. The error says where it looked, or what is wrong with the first that it found.
func (f finder) load(l library) (uintptr, error) {
	var broken error
	for _, name := range l.sonames {
		h, err := f.open(name)
		if err == nil {
			return h, nil
		}
		if broken == nil && !strings.Contains(err.Error(), "No such file") {
			broken = err
		}
	}
	dirs := f.folders()
	for _, name := range l.sonames {
		for _, dir := range dirs {
			path := filepath.Join(dir, name)
			if len(f.glob(path)) == 0 {
				continue
			}
			h, err := f.open(path)
			if err == nil {
				return h, nil
			}
			broken = cmp.Or(broken, err)
		}
	}
	if broken != nil {
		return 0, exit.Lost.Errorf("cuda: the %s found cannot be loaded: %w: %s", l.name, broken, l.fix)
	}
	where := "the loader's path"
	if len(dirs) > 0 {
		where += ", " + strings.Join(dirs, ", ")
	}
	return 0, exit.Lost.Errorf("cuda: no %s: looked for %s in %s: %s, or set LD_LIBRARY_PATH", l.name, strings.Join(l.sonames, ", "), where, l.fix)
}

// bind loads l and finds its functions.
func (f finder) bind(l library, functions map[string]*uintptr) error {
	h, err := f.load(l)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(functions)) {
		if *functions[name], err = purego.Dlsym(h, name); err != nil {
			return exit.Lost.Errorf("cuda: the %s found has no %s: it is too old: %s", l.name, name, l.fix)
		}
	}
	return nil
}
