package parallel

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"titan/libtitan/graph"
	"titan/libtitan/op"
	"titan/libtitan/plan"
	"titan/libtitan/scalar"
)

// replay runs a program on what its values are made of instead of numbers: a value is the terms that it is the sum of. It holds
// what lies in memory, by place.
type replay struct {
	t       *rapid.T
	p       *plan.Program
	spaces  map[string][]held
	flying  []flight
	out     map[string][]string
	current int
}

// held is a value in memory.
type held struct {
	lo, hi int
	terms  []string
}

// flight is a move aside that has begun: what it reads, and what it makes.
type flight struct {
	step  int
	reads []*plan.Slot
	makes map[*plan.Slot]bool
}

func newReplay(t *rapid.T, p *plan.Program) *replay {
	return &replay{t: t, p: p, spaces: map[string][]held{}, out: map[string][]string{}}
}

// run gives what a program leaves: gradients and losses by name, and messages.
func (m *replay) run() map[string][]string {
	for _, list := range [][]plan.Step{m.p.Constants, m.p.Copies} {
		for i := range list {
			m.step(&list[i])
		}
	}
	tail, whole := m.p.Tail()
	early := map[string][]string{}
	for i := range m.p.Steps {
		if m.current = i; i == tail {
			early = m.wholeGrads(whole)
		}
		m.step(&m.p.Steps[i])
	}
	maps.Copy(m.out, m.grads(nil))
	for name, terms := range early {
		require.Equal(m.t, terms, m.out[name], "%s was not whole", name)
	}
	return m.out
}

// wholeGrads are the gradients named, none of them under way.
func (m *replay) wholeGrads(named map[string]bool) map[string][]string {
	for _, f := range m.flying {
		for s := range f.makes {
			m.holds(s.Class != plan.Grad || !named[s.Name], "%s is under way", s.Name)
		}
	}
	return m.grads(named)
}

// grads are the gradients that lie in memory, of those named or all.
func (m *replay) grads(named map[string]bool) map[string][]string {
	out := map[string][]string{}
	for i := range m.p.Steps {
		for _, s := range m.p.Steps[i].Out {
			if s.Class == plan.Rows {
				require.Equal(m.t, []string{"rows"}, m.read(s))
			}
			for _, g := range s.Named() {
				if g.Class == plan.Grad && (named == nil || named[g.Name]) {
					if name := "gradient of " + g.Name; out[name] == nil {
						out[name] = m.read(g)
					}
				}
			}
		}
	}
	return out
}

func (m *replay) step(s *plan.Step) {
	if s.Kind == plan.Compute && s.Node.Op.View {
		return
	}
	if s.Scratch != nil {
		m.write(s.Scratch, []string{"scratch"})
	}
	if len(s.In) == 2 && (s.In[0].Parts != nil || s.In[1].Parts != nil) {
		m.joined(s)
		return
	}
	var in [][]string
	for _, slot := range s.In {
		in = append(in, m.read(slot))
	}
	m.land(s)
	switch s.Kind {
	case plan.Send:
		m.out[fmt.Sprint("sent ", s.Tag)] = in[0]
	case plan.Recv:
		m.write(s.Out[0], []string{fmt.Sprint("received ", s.Tag)})
	case plan.Accumulate:
		m.put(s, 0, in[0])
	default:
		results := made(s.Node, in)
		for k, terms := range results {
			m.put(s, k, terms)
		}
		switch last := s.Out[len(s.Out)-1]; {
		case last.Class == plan.Rows:
			m.write(last, []string{"rows"})
		case len(s.Out) > len(results): // plan.LargestWhereMade
			m.write(last, []string{term(fmt.Sprint("amax", op.AmaxAttr{}), 0, results)})
		}
	}
	if s.Scratch != nil {
		require.Equal(m.t, []string{"scratch"}, m.read(s.Scratch), "%s", s)
	}
	if s.Aside {
		f := flight{step: m.current, reads: s.In, makes: map[*plan.Slot]bool{}}
		for _, o := range s.Out {
			f.makes[o.Root()] = true
		}
		m.flying = append(m.flying, f)
	}
}

// joined does what a joined product stands for: the products of the parts, each into a part of the result or added up.
func (m *replay) joined(s *plan.Step) {
	part := func(of *plan.Slot, i int) *plan.Slot {
		if of.Parts == nil {
			return of
		}
		return of.Parts[i]
	}
	var sum [][]string
	for i := range max(len(s.In[0].Parts), len(s.In[1].Parts)) {
		terms := made(s.Node, [][]string{m.read(part(s.In[0], i)), m.read(part(s.In[1], i))})[0]
		if s.Out[0].Parts == nil {
			sum = append(sum, terms)
			continue
		}
		m.write(s.Out[0].Parts[i], terms)
	}
	if sum != nil {
		m.write(s.Out[0], sumOf(sum...))
	}
	m.land(s)
}

// land ends the moves whose results s reads.
func (m *replay) land(s *plan.Step) {
	m.flying = slices.DeleteFunc(m.flying, func(f flight) bool {
		return slices.ContainsFunc(s.In, func(in *plan.Slot) bool { return f.makes[in.Root()] })
	})
}

// put writes result k of s, or adds it to what is there.
func (m *replay) put(s *plan.Step, k int, terms []string) {
	out := s.Out[k]
	if len(s.Add) > k && s.Add[k] {
		terms = sumOf(terms, m.read(out))
	}
	m.write(out, terms)
	if out.Class == plan.Loss {
		m.out[fmt.Sprint("loss ", out.Microbatch)] = terms
	}
}

// made is what a node makes of its inputs. What is made of parameters alone is the same wherever it is made, and embeddings cast
// the rows that they take.
func made(n *graph.Node, in [][]string) (out [][]string) {
	if n.Op.Name == "add" {
		return [][]string{sumOf(in...)}
	}
	if a, ok := n.Attr.(op.FusedAttr); ok {
		return calculated(a.Program, in)
	}
	if n.Op.Name == "embedding" {
		in[1] = []string{strings.TrimSuffix(strings.TrimPrefix(in[1][0], "cast("), ")")}
	}
	var more [][]string
	if n.Op.Name == "einsum" {
		in, more = in[:2], in[2:]
	}
	what := fmt.Sprintf("%p", n)
	if n.Op.Name == "einsum" || n.Op.Name == "amax" { // a joined one has a node of its own, and what is told of a result none
		what = fmt.Sprint(n.Op.Name, n.Attr)
	}
	if !slices.ContainsFunc(in, func(terms []string) bool { return len(terms) != 1 || !strings.HasPrefix(terms[0], "params ") }) {
		what = fmt.Sprint(n.Op.Name, n.Attr)
	}
	for k := range n.Results {
		result := term(what, k, in)
		if n.Op.Name == "cast" && len(in[0]) == 1 && strings.HasPrefix(in[0][0], "params ") {
			result = "cast(" + in[0][0] + ")"
		}
		out = append(out, sumOf(append([][]string{{result}}, more...)...))
	}
	return out
}

// term stands for result k of what is done with in.
func term(what string, k int, in [][]string) string {
	return fmt.Sprintf("%x", sha256.Sum256(fmt.Append(nil, what, k, in)))[:12]
}

// calculated is what a fused program makes; what it adds is a sum, as adds' are.
func calculated(p *scalar.Program, in [][]string) (out [][]string) {
	values := make([][]string, len(p.Steps))
	for i, port := range p.In {
		values[port.Value] = in[i]
	}
	for i, s := range p.Steps {
		var args [][]string
		for _, a := range s.Args {
			args = append(args, values[a])
		}
		switch s.Code {
		case scalar.Input:
		case scalar.Add:
			values[i] = sumOf(args...)
		default:
			values[i] = []string{fmt.Sprintf("%x", sha256.Sum256(fmt.Append(nil, s.Code, s.Imm, args)))[:12]}
		}
	}
	for _, port := range p.Out {
		out = append(out, values[port.Value])
	}
	return out
}

func sumOf(values ...[]string) []string {
	return slices.Sorted(slices.Values(slices.Concat(values...)))
}

// place is where a slot lies: a space, and bytes of it.
func (m *replay) place(s *plan.Slot) (space string, lo, hi int) {
	root := s.Root()
	if root.Parts != nil && s != root {
		space, lo, _ = m.place(root)
		return space, lo + block(s), lo + block(s) + s.Bytes()
	}
	if s.Of != nil && s.Class != plan.Window {
		s = s.Of
	}
	switch {
	case s.NumElements() == 0, s.Class == plan.Const:
		return fmt.Sprintf("%p", root), 0, 1
	case s.Class == plan.Arena, (s.Class == plan.Grad || s.Class == plan.Rows) && m.p.GradsInArena:
		m.holds(root.Offset+root.Bytes() <= m.p.ArenaBytes, "%s ends after the arena", s.FQN)
		return "arena", s.Offset, s.Offset + s.Bytes()
	case s.Class == plan.Window:
		m.holds(root.Offset+root.Bytes() <= m.p.WindowBytes, "%s ends after the windows", s.FQN)
		return "windows", root.Offset + s.Start, root.Offset + s.Start + s.Bytes()
	case s.Name != "":
		return fmt.Sprint(s.Class, " ", s.Name), 0, s.Bytes()
	}
	return fmt.Sprint(s.Class, " ", s.Microbatch), 0, s.Bytes()
}

// block is where a part of a joined value begins if each part of it, which may be columns, is held to be a block by itself.
func block(part *plan.Slot) int {
	if part.Stride == 0 {
		return part.Start
	}
	return part.Start * part.Of.NumElements() / part.Stride
}

func (m *replay) read(s *plan.Slot) []string {
	space, lo, hi := m.place(s)
	for _, h := range m.spaces[space] {
		if h.lo == lo && h.hi == hi {
			return slices.Clone(h.terms)
		}
	}
	switch s.Root().Class {
	case plan.Param, plan.Tokens, plan.Labels, plan.Scale:
		return []string{space}
	}
	m.holds(false, "it reads %s %s %v, which is not there", s.Class, s.FQN+s.Name, s.Type)
	return nil
}

// holds checks something of the current step.
func (m *replay) holds(ok bool, what string, args ...any) {
	if !ok {
		m.t.Fatalf("step %d, %s: %s", m.current, &m.p.Steps[m.current], fmt.Sprintf(what, args...))
	}
}

func (m *replay) write(s *plan.Slot, terms []string) {
	space, lo, hi := m.place(s)
	for _, f := range m.flying {
		for _, in := range f.reads {
			at, from, to := m.place(in)
			m.holds(at != space || from >= hi || lo >= to, "it writes over what step %d reads aside", f.step)
		}
	}
	list := slices.DeleteFunc(m.spaces[space], func(h held) bool { return h.lo < hi && lo < h.hi })
	m.spaces[space] = append(list, held{lo, hi, terms})
}
