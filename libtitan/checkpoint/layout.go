package checkpoint

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"titan/libtitan/exit"
	"titan/libtitan/manifest"
	"titan/libtitan/mesh"
	"titan/libtitan/model/llama3"
	"titan/libtitan/placement"
)

// Layout says how tensors are cut over ranks, each of which has a file: by rows over dp_shard and cp, within what the
// model's table cuts over tp, within the pipeline stages. That is how training stores parameters and moments.
type Layout struct {
	Mesh   placement.Mesh // of the ranks of a stage
	Stages [][]string     // by pp rank, the modules it holds; nil: there is one, which holds all
}

const maxWorld = 1 << 16 // ranks, and files

// WorldLayout cuts every tensor by rows over n ranks.
func WorldLayout(n int) (*Layout, error) {
	return newLayout(placement.Mesh{1, n, 1, 1}, nil)
}

func newLayout(m placement.Mesh, stages [][]string) (*Layout, error) {
	world := int64(max(1, len(stages)))
	for _, n := range m {
		if n < 1 || int64(n) > maxWorld || world*int64(n) > maxWorld {
			return nil, exit.Usage.Errorf("a mesh of %v: degrees are at least 1, and all ranks at most %d", m, maxWorld)
		}
		world *= int64(n)
	}
	return &Layout{m, stages}, nil
}

// ManifestLayout is the layout that a manifest's mesh and stages give; degrees, "dp_shard=4,tp=2", override the mesh.
func ManifestLayout(m *manifest.Manifest, degrees string) (*Layout, error) {
	d := m.Mesh.Dims
	l, err := newLayout(placement.Mesh{d.DPReplicate, d.DPShard, d.CP, d.TP}, nil)
	if err != nil {
		return nil, err
	}
	if m.Pipeline != nil && d.PP > 1 {
		l.Stages = make([][]string, d.PP)
		for _, s := range m.Pipeline.Stages {
			l.Stages[s.PPRank] = append(l.Stages[s.PPRank], s.FQNs...)
		}
	}
	if d.PP > 1 && (m.Pipeline == nil || len(m.Pipeline.Stages) == 0) {
		return nil, exit.Input.Errorf("pipeline.stages: absent, but mesh.dims.pp is %d: pipe the manifest through pp-split", d.PP)
	}
	return l.With(degrees)
}

// With is l with other degrees: "dp_shard=4,tp=2". Axes that are not named keep theirs.
func (l *Layout) With(degrees string) (*Layout, error) {
	axes := map[string]int{mesh.DPReplicate: 0, mesh.DPShard: 1, mesh.CP: 2, mesh.TP: 3}
	m := l.Mesh
	for _, part := range strings.Split(degrees, ",") {
		if degrees == "" {
			break
		}
		name, value, _ := strings.Cut(part, "=")
		axis, ok := axes[strings.TrimSpace(name)]
		n, err := strconv.Atoi(strings.TrimSpace(value))
		if !ok || err != nil {
			return nil, exit.Usage.Errorf("layout %q: %q is not like dp_shard=4 (dp_replicate, dp_shard, cp, tp)", degrees, part)
		}
		m[axis] = n
	}
	return newLayout(m, l.Stages)
}

// World is the number of ranks.
func (l *Layout) World() int { return max(1, len(l.Stages)) * l.Mesh.World() }

// placed is a box of a tensor and the ranks that hold it.
type placed struct {
	box   Box
	ranks []int
}

// place cuts a tensor. Ranks that would hold nothing have no piece, but that an empty tensor is kept as one.
func (l *Layout) place(it Item) []placed {
	shape := make([]int, len(it.Shape))
	for d, n := range it.Shape {
		shape[d] = int(n)
	}
	if n, _ := numel(it.Shape); n == 0 {
		return []placed{{whole(it.Shape), l.stageRanks(it.FQN)}}
	}
	stored := l.stored(it.FQN, len(shape))
	var out []placed
	at := map[string]int{} // in out, by offsets
	for _, rank := range l.stageRanks(it.FQN) {
		b := Box{make([]int64, len(shape)), make([]int64, len(shape))}
		for d, r := range l.Mesh.Local(shape, stored, l.Mesh.Coord(rank%l.Mesh.World())) {
			b.Offsets[d], b.Sizes[d] = int64(r.Start), int64(r.Len)
		}
		if slices.Contains(b.Sizes, 0) {
			continue
		}
		key := offsetKey(b.Offsets)
		if i, ok := at[key]; ok {
			out[i].ranks = append(out[i].ranks, rank)
			continue
		}
		at[key] = len(out)
		out = append(out, placed{b, []int{rank}})
	}
	return out
}

// stored is how a parameter, or what the optimizer keeps of it, lies on the mesh.
func (l *Layout) stored(fqn string, dims int) placement.Layout {
	if dims == 0 {
		return placement.Replicated(0)
	}
	live := l.Mesh.Live()
	stored := llama3.Placement(paramName(fqn), dims, live)
	if fsdp := (placement.DPShard | placement.CP) & live; fsdp != 0 {
		stored = stored.Cut(0, fsdp)
	}
	return stored
}

// paramName is the parameter's name, in our spelling, in the name of an item of the optimizer's state.
func paramName(fqn string) string {
	_, param := splitPrefix(respell(unwrapped(fqn), SpellTitan))
	if i := strings.Index(param, ".weight."); i >= 0 {
		param = param[:i+len(".weight")]
	}
	return param
}

// stageRanks lists the ranks of the stages that hold a name's module; a name that is of no module is with the first.
func (l *Layout) stageRanks(fqn string) []int {
	holders := []int{0}
	if module := moduleOf(fqn, l.Stages); module != nil {
		holders = module
	}
	var out []int
	for _, pp := range holders {
		for r := range l.Mesh.World() {
			out = append(out, pp*l.Mesh.World()+r)
		}
	}
	return out
}

// moduleOf lists the stages that hold a name's module.
func moduleOf(fqn string, stages [][]string) (holders []int) {
	param := paramName(fqn) + "."
	for i, modules := range stages {
		if slices.ContainsFunc(modules, func(m string) bool { return strings.HasPrefix(param, m+".") }) {
			holders = append(holders, i)
		}
	}
	return holders
}

// cutsTP reports whether the model's table cuts any of the items over tp.
func (l *Layout) cutsTP(items []Item) bool {
	return slices.ContainsFunc(items, func(it Item) bool {
		return it.Kind == KindTensor && l.stored(it.FQN, len(it.Shape)).Sharded().Has(placement.TP)
	})
}

// check refuses a layout by names that the items do not have.
func (l *Layout) check(items []Item) error {
	if l.Mesh.Live().Has(placement.TP) && !l.cutsTP(items) {
		return fmt.Errorf("tp %d: no tensor has a name that the model's table cuts over tp (layers.0.attention.wq.weight): convert the names first", l.Mesh[3])
	}
	return nil
}
