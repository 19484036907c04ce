package parallel

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
	"titan/libtitan/graph"
	"titan/libtitan/manifest"
	"titan/libtitan/model/llama3"
	"titan/libtitan/op"
	"titan/libtitan/pipeline"
	"titan/libtitan/plan"
)

// oneRank is two microbatches of four layers on one rank.
func oneRank(t *testing.T, tied bool) *plan.Program {
	m := &manifest.Manifest{Mesh: &manifest.Mesh{Dims: manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1, EP: 1}}, Model: &manifest.Model{}}
	c := tiny
	c.NumLayers, c.Tied = 4, tied
	s := shape{rows: 2, seqLen: 4, dim: c.Dim, compute: dtype.BFloat16}
	st, err := trace(llama3.New(c), 0, 1, s, true)
	require.NoError(t, err)
	on := spread(m, s)
	st, err = shard(st, on)
	require.NoError(t, err)
	p, err := plan.Build(plan.Where{Mesh: on.Mesh}, []*plan.Stage{st}, twoMicrobatches(), []int{0})
	require.NoError(t, err)
	return p
}

func twoMicrobatches() (out []pipeline.Action) {
	for i := range 2 {
		for _, kind := range []pipeline.Kind{pipeline.Forward, pipeline.Backward} {
			out = append(out, pipeline.Action{Kind: kind, Microbatch: i})
		}
	}
	return out
}

// interpret runs a program of one rank in float64, each value in a place of its own, and gives the gradients by name.
func interpret(p *plan.Program) map[string][]float64 {
	memory := map[*plan.Slot]graph.Array{}
	grads := map[string][]float64{}
	named := map[string]graph.Array{}
	read := func(s *plan.Slot) graph.Array {
		if a, ok := memory[s]; ok {
			return a
		}
		if s.Parts != nil {
			return joined(s, memory)
		}
		key := s.Class.String() + s.Name
		if s.Name == "" {
			key += string(rune('0' + s.Microbatch))
		}
		if a, ok := named[key]; ok {
			return a
		}
		a := graph.NewArray(s.Shape...)
		r := rand.New(rand.NewPCG(uint64(len(key)), uint64(key[len(key)-1])+uint64(key[len(key)/2])<<8))
		for i := range a.Data {
			a.Data[i] = r.NormFloat64() / 4
			if s.DType == dtype.Int32 {
				a.Data[i] = float64(r.IntN(tiny.VocabSize))
			}
		}
		named[key] = a
		return a
	}
	for _, list := range [][]plan.Step{p.Constants, p.Copies, p.Steps} {
		for i := range list {
			s := &list[i]
			var in []graph.Array
			for _, slot := range s.In {
				in = append(in, read(slot))
			}
			out := in[:min(1, len(in))]
			if s.Kind == plan.Compute {
				terms := in[min(2, len(in)):]
				if s.Node.Op.Name != "einsum" {
					terms = nil
				}
				out = s.Node.Op.Eval(s.Node, in[:len(in)-len(terms)])
				for _, term := range terms {
					addTo(out[0], term)
				}
			}
			for j, slot := range s.Out {
				a := graph.Array{Shape: out[j].Shape, Data: append([]float64(nil), out[j].Data...)}
				if s.Add[j] {
					addTo(a, memory[slot])
				}
				if slot.Parts == nil {
					memory[slot] = a
				}
				for _, named := range slot.Named() {
					if slot.Class == plan.Grad {
						grads[named.Name] = a.Data[named.Start/named.DType.Size():][:named.NumElements()]
					}
				}
			}
		}
	}
	return grads
}

// joined is a value whose parts lie in it, rows one above the other or columns side by side. What no part fills is not a number.
func joined(s *plan.Slot, memory map[*plan.Slot]graph.Array) graph.Array {
	all := graph.NewArray(s.Shape...)
	for i := range all.Data {
		all.Data[i] = math.NaN()
	}
	for _, part := range s.Parts {
		x, start := memory[part].Data, part.Start/s.DType.Size()
		if part.Stride == 0 {
			copy(all.Data[start:], x)
			continue
		}
		width := len(x) * part.Stride / len(all.Data)
		for row := range len(x) / width {
			copy(all.Data[start+row*part.Stride:], x[row*width:][:width])
		}
	}
	return all
}

func addTo(a, b graph.Array) {
	for i := range a.Data {
		a.Data[i] += b.Data[i]
	}
}

// requireApart checks that what is live at once has places of its own.
func requireApart(t *testing.T, p *plan.Program) {
	for i, a := range p.Slots {
		require.LessOrEqual(t, a.Offset+a.Bytes(), p.ArenaBytes)
		for _, b := range p.Slots[i+1:] {
			apart := a.Last < b.First || b.Last < a.First || a.Offset+a.Bytes() <= b.Offset || b.Offset+b.Bytes() <= a.Offset
			require.True(t, apart, "%s and %s share memory", a.FQN, b.FQN)
		}
	}
}

func countSteps(p *plan.Program, name string) (n int) {
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Kind == plan.Compute && s.Node.Op.Name == name {
			n++
		}
	}
	return n
}

// Parameters are cast outside the step, the embedding's rows as they are taken, and gradients stay the same.
func TestKeepCopies(t *testing.T) {
	for _, tied := range []bool{false, true} {
		want, p := interpret(oneRank(t, tied)), oneRank(t, tied)
		before := p.ArenaBytes
		p.KeepCopies()
		require.Zero(t, countSteps(p, "cast"))
		numCopied := 1 + 9*4 + 1 // the last norm, the layers, and the head
		require.Len(t, p.Copies, numCopied)
		require.Less(t, p.ArenaBytes, before)
		requireApart(t, p)
		require.Equal(t, want, interpret(p))
		p.KeepCopies()
		require.Len(t, p.Copies, numCopied)
	}
}

// The largest magnitudes of whole weights are found outside the step, beside the casts of what is not float8, and gradients stay
// the same; of rows they are found in the step.
func TestKeepLargestMagnitudes(t *testing.T) {
	const linears, others = 4 * 7, 4*2 + 1 + 1 // norms, the last one and the head
	for recipe, want := range map[string]map[plan.Class]int{
		"tensorwise":         {plan.Largest: linears, plan.Copy: others},
		"rowwise":            {plan.Copy: linears + others},
		"rowwise_with_gw_hp": {plan.Largest: linears, plan.Copy: linears + others},
	} {
		before, p := shardedProgram(t, recipe, 0, 1), shardedProgram(t, recipe, 0, 1)
		p.KeepCopies()
		require.Equal(t, want, copiesOf(p), recipe)
		require.Equal(t, countSteps(before, "amax")-want[plan.Largest], countSteps(p, "amax"), recipe)
		require.Equal(t, interpret(before), interpret(p), recipe)
		requireApart(t, p)
		bytes := 0
		for _, f := range p.Fixed() {
			if strings.HasSuffix(f.Owner, ", largest magnitude < parameters") || strings.HasSuffix(f.Owner, ", narrow < parameters") {
				bytes += f.Bytes
			}
		}
		require.Equal(t, p.CopyBytes(), bytes, recipe)
	}
}

// copiesOf counts what is kept from step to step: each from a parameter of its name, and once.
func copiesOf(p *plan.Program) map[plan.Class]int {
	out, seen := map[plan.Class]int{}, map[string]bool{}
	for i := range p.Copies {
		s := &p.Copies[i]
		name := s.Out[0].Class.String() + s.In[0].Name
		if s.In[0].Class == plan.Param && s.Out[0].Name == s.In[0].Name && !seen[name] {
			out[s.Out[0].Class]++
		}
		seen[name] = true
	}
	return out
}

// With FSDP each rank keeps the largest magnitudes of its shards, and they are joined in the step, in one reduction.
func TestFSDPKeepsLargestMagnitudes(t *testing.T) {
	for rank := range 2 {
		p := fsdpProgram(t, "tensorwise", rank)
		p.KeepCopies()
		require.Equal(t, map[plan.Class]int{plan.Largest: 4 * 7}, copiesOf(p))
		joined := 0
		for i := range p.Steps {
			s := &p.Steps[i]
			if s.Kind != plan.Compute {
				continue
			}
			if a, ok := s.Node.Attr.(op.MoveAttr); ok && a.Max {
				joined++
				require.Len(t, s.In, 4*7)
				for k, in := range s.In {
					require.Equal(t, plan.Largest, in.Class)
					require.Equal(t, plan.Arena, s.Out[k].Class)
				}
			}
		}
		require.Equal(t, 1, joined)
	}
}

// What FSDP gathers is cast in the step, and so is nothing else.
func TestFSDPKeepsNoCopies(t *testing.T) {
	p := fsdpProgram(t, "off", 0)
	casts := countSteps(p, "cast")
	p.KeepCopies()
	require.Empty(t, p.Copies)
	require.Equal(t, casts, countSteps(p, "cast"))
}

// Residuals and the inputs' gradients are added up by the products that make their last terms; what a norm's backward makes is not.
func TestSumInProducts(t *testing.T) {
	want, p := interpret(oneRank(t, false)), oneRank(t, false)
	require.Len(t, want, 4*9+3)
	adds := countSteps(p, "add")
	p.SumInProducts()
	const layers, microbatches = 4, 2
	require.Equal(t, adds-layers*microbatches*4, countSteps(p, "add"), "two residuals and two gradients a layer")
	requireApart(t, p)
	got := interpret(p)
	for name, g := range want {
		require.InDeltaSlice(t, g, got[name], 1e-12, name)
	}
	p.KeepCopies()
	p.PlaceGrads()
	requireApart(t, p)
	got = interpret(p)
	for name, g := range want {
		require.InDeltaSlice(t, g, got[name], 1e-12, name)
	}
}

// arrangedJob is the step of two layers on rank 0 of a mesh, of bfloat16 numbers.
func arrangedJob(t *testing.T, d manifest.MeshDims, set func(m *manifest.Manifest)) *plan.Program {
	m := compiledManifest(2, d, "model", "loss")
	m.Float8 = manifest.NewFloat8("off")
	set(m)
	m.Derive()
	j, err := New(m)
	require.NoError(t, err)
	p, err := j.Program(0)
	require.NoError(t, err)
	return p
}

// The backward's products for queries, keys and values are two, also where a fused kernel would add them up; gradients stay the same.
func TestJoinProducts(t *testing.T) {
	one := manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1, EP: 1}
	for _, compile := range []bool{false, true} {
		job := func() *plan.Program {
			return arrangedJob(t, one, func(m *manifest.Manifest) { m.Compile.Enable = compile })
		}
		want, p := interpret(job()), job()
		p.KeepCopies()
		p.SumInProducts()
		p.NarrowGrads()
		products := countSteps(p, "einsum")
		fixed := bytesFixed(p)
		p.JoinProducts()
		require.Equal(t, fixed, bytesFixed(p))
		const layers, joined = 2, 2*3 - 2
		require.Equal(t, products-layers*joined, countSteps(p, "einsum"))
		p.PlaceGrads()
		requireApart(t, p)
		requireColumns(t, p)
		got := interpret(p)
		require.Len(t, got, len(want))
		for name, g := range want {
			require.InDeltaSlice(t, g, got[name], 1e-12, name)
		}
		steps := len(p.Steps)
		p.JoinProducts()
		require.Len(t, p.Steps, steps, "once is enough")
	}
}

// bytesFixed is the memory that lives as long as a rank trains with p.
func bytesFixed(p *plan.Program) (bytes int) {
	for _, f := range p.Fixed() {
		bytes += f.Bytes
	}
	return bytes
}

// requireColumns checks that what is columns of a matrix is only touched by kernels that know.
func requireColumns(t *testing.T, p *plan.Program) {
	columns := 0
	for i := range p.Steps {
		s := &p.Steps[i]
		for _, in := range s.In {
			require.True(t, in.Stride == 0 || s.Node.Op.View, "%s", s)
		}
		for _, out := range s.Out {
			if out.Stride > 0 && !s.Node.Op.View {
				require.Contains(t, []string{"rope", "attention_backward"}, s.Node.Op.Name)
				columns++
			}
		}
	}
	require.Equal(t, 2*3, columns)
}

// What cannot be joined is left: products whose weights' gradients are sums, over microbatches or ranks, products of float8 numbers,
// of weights that FSDP gathers, or of columns that do not begin where vectors do.
func TestJoinProductsLeaves(t *testing.T) {
	for name, c := range map[string]struct {
		d   manifest.MeshDims
		set func(m *manifest.Manifest)
	}{
		"microbatches": {manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1, EP: 1}, func(m *manifest.Manifest) {
			m.Training.GradAccumSteps, m.Training.LocalBatchSize = 2, 4
		}},
		"float8": {manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1, EP: 1}, func(m *manifest.Manifest) { m.Float8 = manifest.NewFloat8("tensorwise") }},
		"odd widths": {manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1, EP: 1}, func(m *manifest.Manifest) {
			c := &m.Model.Config
			c.FFNHidden, c.NumHeads, c.NumKVHeads, c.HeadDim = 100, 16, 1, 4
		}},
		"ddp":  {manifest.MeshDims{PP: 1, DPReplicate: 2, DPShard: 1, CP: 1, TP: 1, EP: 1}, func(*manifest.Manifest) {}},
		"fsdp": {manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 2, CP: 1, TP: 1, EP: 1}, func(*manifest.Manifest) {}},
		"ring": {manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 2, TP: 1, EP: 1}, func(m *manifest.Manifest) {
			m.Training.SeqLen, m.Model.Config.MaxSeqLen, m.Mesh.CPRotate = 64, 64, "ring"
		}},
	} {
		p := arrangedJob(t, c.d, c.set)
		p.ForGPU()
		for i := range p.Steps {
			for _, s := range slices.Concat(p.Steps[i].In, p.Steps[i].Out) {
				require.Nil(t, s.Root().Parts, name)
			}
		}
	}
}
