package parallel

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"strings"
	"text/tabwriter"

	"titan/libtitan/dtype"
	"titan/libtitan/manifest"
	"titan/libtitan/model/llama3"
	"titan/libtitan/op"
	"titan/libtitan/pass"
	"titan/libtitan/placement"
)

// float8 decides which linear layers multiply in float8; nil: none does.
type float8 struct {
	recipe  op.Float8Recipe
	filters []string
	spread  pass.Spread
}

func newFloat8(m *manifest.Manifest, s pass.Spread) *float8 {
	if !m.Float8.On() {
		return nil
	}
	return &float8{op.Float8Recipe(m.Float8.Recipe), m.Float8.FilterFQNs, s}
}

// float8Layer is a linear layer under a recipe.
type float8Layer struct {
	fqn     string
	out, in int    // of the weight as a rank computes with it: what tp leaves
	kept    string // why it stays in the type computed in; "": it is float8
}

// layer decides by the filter and by the sizes on every rank of tp.
func (f *float8) layer(l pass.Linear) float8Layer {
	shape := l.Weight.Shape
	_, used := f.spread.Param(l.Weight.Name(), shape)
	out := float8Layer{fqn: l.FQN}
	tp := f.spread.Mesh.Size(placement.TP)
	for i := range tp {
		at := f.spread.Mesh.With(placement.Coord{}, placement.TP, i)
		local := f.spread.Mesh.LocalShape(shape, used, at)
		if i == 0 {
			out.out, out.in = local[0], local[1]
		}
		for d, name := range []string{"out", "in"} {
			if local[d]%manifest.Float8Multiple != 0 && out.kept == "" {
				out.kept = fmt.Sprintf("%s %s is not divisible by %d", name, size(local[d], shape[d], tp), manifest.Float8Multiple)
			}
		}
	}
	for _, part := range f.filters {
		if strings.Contains(l.FQN, part) {
			out.kept = fmt.Sprintf("float8.filter_fqns has %s", part)
		}
	}
	return out
}

// size spells a local size, and where it comes from.
func size(local, whole, tp int) string {
	if local == whole {
		return fmt.Sprint(local)
	}
	return fmt.Sprintf("%d (%d over tp %d)", local, whole, tp)
}

func (f *float8) converts(l pass.Linear) bool { return f.layer(l).kept == "" }

// TellFloat8 says which linear layers of a valid m are float8, as the ranks will decide, and why the others are not: in a line,
// and as a table. Where nothing is to be float8, or nothing can be trained, it says nothing.
func TellFloat8(m *manifest.Manifest, log *slog.Logger, table io.Writer) error {
	if !m.Float8.On() || m.Model.Config.NumExperts > 0 {
		return nil
	}
	r, err := reportFloat8(m)
	if err != nil {
		return err
	}
	level := slog.LevelInfo
	if r.converted() == 0 {
		level = slog.LevelWarn
	}
	log.Log(context.Background(), level, r.String())
	return r.write(table)
}

// float8Report is what becomes of the linear layers of a job.
type float8Report struct {
	recipe string
	dtype  string // of the others
	layers []float8Layer
}

func reportFloat8(m *manifest.Manifest) (*float8Report, error) {
	s := shape{rows: 1, seqLen: m.Training.SeqLen, dim: m.Model.Config.Dim, compute: dtype.Float32}
	f := newFloat8(m, spread(m, s))
	st, err := trace(llama3.New(m.Model.Config), 0, 1, s, false)
	if err != nil {
		return nil, err
	}
	r := &float8Report{recipe: m.Float8.Recipe, dtype: m.Training.MixedPrecisionParam}
	for _, l := range pass.Linears(st.Graph) {
		r.layers = append(r.layers, f.layer(l))
	}
	return r, nil
}

// converted counts the layers that are float8.
func (r *float8Report) converted() (n int) {
	for _, l := range r.layers {
		if l.kept == "" {
			n++
		}
	}
	return n
}

// float8Group is layers of all blocks that share a fate.
type float8Group struct {
	float8Layer
	count int
}

var blockNumber = regexp.MustCompile(`^layers\.\d+\.`)

// groups puts the same layer of all blocks together.
func (r *float8Report) groups() (out []float8Group) {
	index := map[float8Layer]int{}
	for _, l := range r.layers {
		l.fqn = blockNumber.ReplaceAllString(l.fqn, "layers.*.")
		if _, ok := index[l]; !ok {
			index[l] = len(out)
			out = append(out, float8Group{float8Layer: l})
		}
		out[index[l]].count++
	}
	return out
}

// String is the report in a line.
func (r *float8Report) String() string {
	s := fmt.Sprintf("float8 %s: %d of %d linears", r.recipe, r.converted(), len(r.layers))
	for _, g := range r.groups() {
		if g.kept != "" {
			s += fmt.Sprintf("; not %s, %s", g.fqn, g.kept)
		}
	}
	return s
}

// write prints the report as a table: the type, how many, the layer, its sizes on a rank, why it is kept.
func (r *float8Report) write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, g := range r.groups() {
		if g.kept == "" {
			fmt.Fprintf(t, "float8\t%d\t%s\t%d x %d\n", g.count, g.fqn, g.out, g.in)
			continue
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%d x %d\t%s\n", r.dtype, g.count, g.fqn, g.out, g.in, g.kept)
	}
	return t.Flush()
}
