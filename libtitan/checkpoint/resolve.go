package checkpoint

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"titan/libtitan/dtype"
	"titan/libtitan/exit"
)

// Want is a tensor that a model asks of a checkpoint, or an object where DType is Invalid.
type Want struct {
	FQN   string
	DType dtype.DType
	Shape []int64
}

// Resolve finds for each wanted name the stored one: the same, or one that differs by wrapper parts (_orig_mod,
// _checkpoint_wrapped_module, module) or by torchtitan's other spellings. One error tells of what is missing
// or has another shape: of the first of them, and how many more there are. Notes tell what a person should know of a checkpoint that does load: values that will be
// narrowed, a rotary table that is not needed.
func Resolve(src Source, want []Want) (stored map[string]string, notes []string, err error) {
	m := newMatcher(want)
	for _, it := range src.Items() {
		m.add(it)
	}
	if err := m.err(); err != nil {
		return nil, nil, exit.Input.Errorf("checkpoint %s: %w", src.Name(), err)
	}
	return m.stored, m.notes(), nil
}

// matcher pairs wanted with stored names.
type matcher struct {
	want    []Want
	byPlain map[string][]int // wanted indices by plain name
	stored  map[string]string
	items   map[string]Item // by wanted name
	clashes []string
	unasked []string
	rotary  []string
}

func newMatcher(want []Want) *matcher {
	m := &matcher{want: want, byPlain: map[string][]int{}, stored: map[string]string{}, items: map[string]Item{}}
	for i, w := range want {
		p := plainName(w.FQN)
		m.byPlain[p] = append(m.byPlain[p], i)
	}
	return m
}

// add pairs a stored item with the wanted name that keeps most of its parts.
func (m *matcher) add(it Item) {
	best := ""
	for _, i := range m.byPlain[plainName(it.FQN)] {
		if w := m.want[i].FQN; unwraps(it.FQN, w) && (best == "" || len(w) > len(best)) {
			best = w
		}
	}
	switch other, taken := m.stored[best]; {
	case best == "":
		if plainName(it.FQN) == "freqs_cis" || strings.HasSuffix(plainName(it.FQN), ".freqs_cis") {
			m.rotary = append(m.rotary, it.FQN)
		}
		m.unasked = append(m.unasked, it.FQN)
	case taken:
		m.clashes = append(m.clashes, fmt.Sprintf("%s and %s are both %s", other, it.FQN, best))
	default:
		m.stored[best], m.items[best] = it.FQN, it
	}
}

// err is one error for what does not fit.
func (m *matcher) err() error {
	if len(m.stored) == 0 && len(m.want) > 0 {
		return fmt.Errorf("none of the %d names that the model wants is there: it wants %s, the checkpoint has %s",
			len(m.want), first(3, wantedNames(m.want)), first(3, m.unasked))
	}
	why := slices.Clone(m.clashes)
	var shapes, missing []string
	for _, w := range m.want {
		it, ok := m.items[w.FQN]
		switch {
		case !ok:
			missing = append(missing, w.FQN)
		case it.misfit(w) != "":
			shapes = append(shapes, it.misfit(w))
		}
	}
	if len(shapes) > 0 {
		why = append(why, firstBy("; ", 3, shapes))
	}
	if len(missing) > 0 {
		why = append(why, "missing: "+first(3, missing))
	}
	if len(why) == 0 {
		return nil
	}
	return fmt.Errorf("it does not fit the model: %s", firstBy("; ", 3, why))
}

// misfit says how a stored item differs from what is wanted, or "".
func (it Item) misfit(w Want) string {
	switch {
	case (it.Kind == KindTensor) != (w.DType != dtype.Invalid):
		return fmt.Sprintf("%s is of kind %s", it.FQN, it.Kind)
	case it.Kind == KindTensor && !slices.Equal(it.Shape, w.Shape):
		return fmt.Sprintf("%s has shape %v, the model's %v", it.FQN, it.Shape, w.Shape)
	case it.DType != w.DType && !(it.DType.IsFloat() && w.DType.IsFloat()):
		return fmt.Sprintf("%s is %s, the model's %s", it.FQN, it.DType, w.DType)
	}
	return ""
}

func (m *matcher) notes() []string {
	var notes []string
	narrowed := map[string][]string{}
	for _, w := range m.want {
		if it := m.items[w.FQN]; it.DType.Size() > w.DType.Size() {
			key := fmt.Sprintf("%s is narrowed to %s", it.DType, w.DType)
			narrowed[key] = append(narrowed[key], it.FQN)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(narrowed)) {
		notes = append(notes, fmt.Sprintf("%s in %d tensors: %s", key, len(narrowed[key]), first(3, narrowed[key])))
	}
	if len(m.rotary) > 0 {
		notes = append(notes, fmt.Sprintf("%s is not read: the rotary table is computed", first(3, m.rotary)))
	}
	return notes
}

func wantedNames(want []Want) []string {
	names := make([]string, len(want))
	for i, w := range want {
		names[i] = w.FQN
	}
	return names
}

// first joins the first n names, and says how many follow.
func first(n int, names []string) string { return firstBy(", ", n, names) }

// firstBy is first with what stands between two.
func firstBy(between string, n int, names []string) string {
	switch {
	case len(names) == 0:
		return "nothing"
	case len(names) <= n:
		return strings.Join(names, between)
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:n], between), len(names)-n)
}
