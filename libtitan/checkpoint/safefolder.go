package checkpoint

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// DefaultShardSize is how large a file of a sharded model may grow, in bytes of tensors; Hugging Face's own default.
const DefaultShardSize = 5 << 30

// safeSources are a source's tensors, to be written to safetensors.
func safeSources(src Source) []SafeSource {
	var out []SafeSource
	for _, it := range src.Items() {
		if it.Kind == KindTensor {
			out = append(out, SafeSource{Name: it.FQN, DType: it.DType, Shape: it.Shape,
				Fill: fillBox(src, it.FQN, whole(it.Shape), int64(it.DType.Size()))})
		}
	}
	return out
}

// writeSafeFolder fills a folder in the making: one model.safetensors, or several with an index where maxBytes cuts.
func writeSafeFolder(ctx context.Context, dir string, tensors []SafeSource, maxBytes int64, o WriteOptions) error {
	groups := shardBySize(tensors, cmp.Or(maxBytes, DefaultShardSize))
	var plans []*safePlan
	var index safeIndexFile
	index.WeightMap = map[string]string{}
	for i, group := range groups {
		name := "model.safetensors"
		if len(groups) > 1 {
			name = fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(groups))
		}
		p, err := planSafe(group, map[string]string{"format": "pt"})
		if err != nil {
			return fmt.Errorf("safetensors %s: %w", name, err)
		}
		if p.file, err = os.Create(filepath.Join(dir, name)); err != nil {
			return err
		}
		defer p.file.Close() // flushed before, where it matters
		plans = append(plans, p)
		for _, t := range group {
			index.WeightMap[t.Name] = name
			index.Metadata.TotalSize += t.bytes()
		}
	}
	if err := writeSafes(ctx, plans, o); err != nil || len(groups) == 1 {
		return err
	}
	b, err := json.MarshalIndent(index, "", "  ")
	if err != nil {
		return err
	}
	return writeSynced(filepath.Join(dir, safeIndex), append(b, '\n'))
}

// writeSynced writes and flushes a small file.
func writeSynced(path string, b []byte) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	return cmp.Or(err, f.Close())
}

// shardBySize cuts tensors, in the order of a model's layers, into groups of at most maxBytes; a tensor larger than
// that has a group of its own.
func shardBySize(tensors []SafeSource, maxBytes int64) [][]SafeSource {
	tensors = slices.Clone(tensors)
	slices.SortStableFunc(tensors, func(a, b SafeSource) int { return naturalOrder(a.Name, b.Name) })
	groups := [][]SafeSource{nil}
	used := int64(0)
	for _, t := range tensors {
		last := len(groups) - 1
		if used+t.bytes() > maxBytes && len(groups[last]) > 0 {
			groups, last, used = append(groups, nil), last+1, 0
		}
		groups[last] = append(groups[last], t)
		used += t.bytes()
	}
	return groups
}

// naturalOrder compares names part by part, numbers as numbers: layers.2 comes before layers.10.
func naturalOrder(a, b string) int {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(x), len(y)) {
		m, err1 := strconv.Atoi(x[i])
		n, err2 := strconv.Atoi(y[i])
		c := strings.Compare(x[i], y[i])
		if err1 == nil && err2 == nil {
			c = cmp.Compare(m, n)
		}
		if c != 0 {
			return c
		}
	}
	return cmp.Compare(len(x), len(y))
}
