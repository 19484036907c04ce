package main

import "titan/libtitan/manifest"

// applyFloat8 puts a recipe into the manifest; a filter that is there already stays.
func (f *flags) applyFloat8(m *manifest.Manifest) {
	if m.Float8.On() && f.float8 != "off" {
		m.Float8.Recipe = f.float8
		return
	}
	m.Float8 = manifest.NewFloat8(f.float8)
}
