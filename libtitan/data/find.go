package data

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"titan/libtitan/exit"
)

// source is a file to read.
type source struct {
	path     string
	name     string // path below the folder that was asked for
	size     int64
	modified time.Time
}

// find lists the files of paths that no pattern of exclude covers, sorted by path, each once. Every path has
// to give a file. Folders, and links to folders, are never files, whatever their names.
func find(paths, exclude []string) ([]source, error) {
	for _, p := range slices.Concat(paths, exclude) {
		if _, err := path.Match(p, ""); err != nil {
			return nil, exit.Input.Errorf("data: pattern %q: %w", p, err)
		}
	}
	var all []source
	for _, p := range paths {
		found, err := findOne(p)
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return nil, exit.Input.Errorf("data: %s: no file there", p)
		}
		all = append(all, found...)
	}
	all = slices.DeleteFunc(all, func(s source) bool { return excluded(s, exclude) })
	if len(all) == 0 {
		return nil, exit.Input.Errorf("data: no files: paths %q, excluded %q", paths, exclude)
	}
	slices.SortFunc(all, func(a, b source) int { return strings.Compare(a.path, b.path) })
	all = slices.CompactFunc(all, func(a, b source) bool { return a.path == b.path })
	for _, s := range all {
		if err := unix.Access(s.path, unix.R_OK); err != nil {
			return nil, exit.Input.Errorf("data: %s: %w", s.path, err)
		}
	}
	return all, nil
}

// findOne lists the files of one path: itself, a folder's, or a pattern's.
func findOne(p string) ([]source, error) {
	p = filepath.Clean(p)
	info, err := os.Stat(p)
	switch {
	case err == nil && info.IsDir():
		found, err := walk(p, []string{"**"})
		return tablesAlone(found), err
	case err == nil && !info.Mode().IsRegular():
		return nil, exit.Input.Errorf("data: %s: not a file or folder", p)
	case err == nil:
		return []source{{p, filepath.Base(p), info.Size(), info.ModTime()}}, nil
	case !strings.ContainsAny(p, "*?["):
		return nil, exit.Input.Errorf("data: %w", err)
	}
	segments := strings.Split(p, "/")
	fixed := slices.IndexFunc(segments, func(s string) bool { return strings.ContainsAny(s, "*?[") })
	root := strings.Join(segments[:fixed], "/")
	switch {
	case root == "" && strings.HasPrefix(p, "/"):
		root = "/"
	case root == "":
		root = "."
	}
	return walk(root, segments[fixed:])
}

// walk lists the files below root whose relative path matches pattern; hidden ones, and those in hidden
// folders, are passed over.
func walk(root string, pattern []string) ([]source, error) {
	var found []source
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return exit.Input.Errorf("data: %s: %w", root, err)
		}
		if name == "." {
			return nil
		}
		parts := strings.Split(name, "/")
		if strings.HasPrefix(d.Name(), ".") || d.IsDir() && !leadsTo(pattern, parts) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if d.IsDir() || !matches(pattern, parts) {
			return nil
		}
		full := filepath.Join(root, name)
		info, err := os.Stat(full) // follows a link
		if err != nil {
			return exit.Input.Errorf("data: %w", err)
		}
		if info.Mode().IsRegular() {
			found = append(found, source{full, name, info.Size(), info.ModTime()})
		}
		return nil
	})
	return found, err
}

// tablesAlone drops the files beside Arrow and Parquet files: in a folder that the datasets library saved they
// are descriptions (dataset_info.json, state.json).
func tablesAlone(found []source) []source {
	tables := map[string]bool{}
	for _, s := range found {
		if isTable(s.path) {
			tables[filepath.Dir(s.path)] = true
		}
	}
	return slices.DeleteFunc(found, func(s source) bool { return tables[filepath.Dir(s.path)] && !isTable(s.path) })
}

// excluded reports whether a pattern covers s or a folder above it. A pattern starts at any depth below the
// folder that was asked for, or it is held against the whole path.
func excluded(s source, patterns []string) bool {
	below := strings.Split(s.name, "/")
	whole := strings.Split(s.path, "/")
	for _, p := range patterns {
		segments := strings.Split(path.Clean(p), "/")
		if matches(append([]string{"**"}, append(segments, "**")...), below) || matches(append(segments, "**"), whole) {
			return true
		}
	}
	return false
}

// matches holds the segments of a path against those of a pattern, where ** is any number of segments.
func matches(pattern, name []string) bool {
	for i, p := range pattern {
		if p == "**" {
			for k := i; k <= len(name); k++ {
				if matches(pattern[i+1:], name[k:]) {
					return true
				}
			}
			return false
		}
		if i == len(name) {
			return false
		}
		if ok, _ := path.Match(p, name[i]); !ok {
			return false
		}
	}
	return len(name) == len(pattern)
}

// leadsTo reports whether a folder may hold a match.
func leadsTo(pattern, folder []string) bool {
	for i, name := range folder {
		if i == len(pattern) {
			return false
		}
		if pattern[i] == "**" {
			return true
		}
		if ok, _ := path.Match(pattern[i], name); !ok {
			return false
		}
	}
	return true
}
