package pickle

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"
)

// int pushes a number. Sizes repeat all through a checkpoint's metadata: the boxes of recent ones are used again.
func (m *machine) int(a Arg) error {
	c := &m.ints[uint64(a.N)*0x9e3779b97f4a7c15>>56]
	if c.boxed == nil || c.n != a.N {
		c.n, c.boxed = a.N, a.N
	}
	return m.push(c.boxed)
}

// long pushes an integer of any length, little-endian two's complement.
func (m *machine) long(a Arg) error {
	if len(a.S) <= 8 {
		var b [8]byte
		if len(a.S) > 0 && a.S[len(a.S)-1]&0x80 != 0 {
			b = [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
		}
		copy(b[:], a.S)
		return m.int(Arg{N: int64(binary.LittleEndian.Uint64(b[:]))})
	}
	b := []byte(a.S)
	slices.Reverse(b)
	n := new(big.Int).SetBytes(b)
	if b[0]&0x80 != 0 {
		n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
	}
	if n.IsInt64() {
		return m.push(n.Int64())
	}
	return m.push(n)
}

func (m *machine) float(a Arg) error {
	return m.push(math.Float64frombits(binary.BigEndian.Uint64([]byte(a.S))))
}

func (m *machine) string(a Arg) error { return m.push(a.S) }

func (m *machine) bytes(a Arg) error { return m.push([]byte(a.S)) }

func (m *machine) tuple(Arg) error {
	items, err := m.popMark()
	if err != nil {
		return err
	}
	return m.push(m.cut(items))
}

func (m *machine) tupleOf(n int) error {
	at := len(m.stack) - n
	if at < m.floor() {
		return errStack
	}
	t := m.cut(m.stack[at:])
	m.stack = m.stack[:at]
	return m.push(t)
}

// cut copies items into a tuple of a shared slab: one allocation serves many small tuples.
func (m *machine) cut(items []any) Tuple {
	const slab = 256
	if len(items) > slab/4 {
		return Tuple(slices.Clone(items))
	}
	if len(m.slab) < len(items) {
		m.slab = make([]any, slab)
	}
	t := Tuple(m.slab[:len(items):len(items)])
	copy(t, items)
	m.slab = m.slab[len(items):]
	return t
}

func (m *machine) append(Arg) error {
	v, err := m.pop()
	if err != nil {
		return err
	}
	return m.extend([]any{v})
}

func (m *machine) appends(Arg) error {
	items, err := m.popMark()
	if err != nil {
		return err
	}
	return m.extend(items)
}

func (m *machine) extend(items []any) error {
	v, err := m.top()
	if err != nil {
		return err
	}
	list, ok := v.(*List)
	if !ok {
		return fmt.Errorf("the value is no list but %s", kind(v))
	}
	list.Items = append(list.Items, items...)
	return nil
}

func (m *machine) setItem(Arg) error {
	if len(m.stack)-2 < m.floor() {
		return errStack
	}
	pair := m.stack[len(m.stack)-2:]
	m.stack = m.stack[:len(m.stack)-2]
	return m.update(pair)
}

func (m *machine) setItems(Arg) error {
	items, err := m.popMark()
	if err != nil {
		return err
	}
	return m.update(items)
}

// update adds alternating keys and values to the dict on the stack.
func (m *machine) update(items []any) error {
	v, err := m.top()
	if err != nil {
		return err
	}
	dict, ok := v.(*Dict)
	switch {
	case !ok:
		return fmt.Errorf("the value is no dict but %s", kind(v))
	case len(items)%2 != 0:
		return errors.New("a key without a value")
	}
	dict.Pairs = slices.Grow(dict.Pairs, len(items)/2)
	for i := 0; i < len(items); i += 2 {
		dict.Pairs = append(dict.Pairs, Pair{items[i], items[i+1]})
	}
	return nil
}

func (m *machine) addItems(Arg) error {
	items, err := m.popMark()
	if err != nil {
		return err
	}
	v, err := m.top()
	if err != nil {
		return err
	}
	set, ok := v.(*Set)
	if !ok {
		return fmt.Errorf("the value is no set but %s", kind(v))
	}
	set.Items = append(set.Items, items...)
	return nil
}

func (m *machine) frozenSet(Arg) error {
	items, err := m.popMark()
	if err != nil {
		return err
	}
	return m.push(&Set{Items: slices.Clone(items), Frozen: true})
}

func (m *machine) global(a Arg) error {
	module, name, _ := strings.Cut(a.S, "\n")
	return m.resolve(module, name)
}

func (m *machine) stackGlobal(Arg) error {
	name, err := m.pop()
	if err != nil {
		return err
	}
	module, err := m.pop()
	if err != nil {
		return err
	}
	mod, ok1 := module.(string)
	nam, ok2 := name.(string)
	if !ok1 || !ok2 {
		return errors.New("the module or the name is no string")
	}
	return m.resolve(mod, nam)
}

func (m *machine) resolve(module, name string) error {
	if m.options.Globals != nil {
		if v, ok := m.options.Globals(module, name); ok {
			return m.push(v)
		}
	}
	return &NameError{module, name}
}

// NameError is a name that the caller does not allow.
type NameError struct{ Module, Name string }

func (e *NameError) Error() string {
	return fmt.Sprintf("%.100q of module %.100q is not allowed here", e.Name, e.Module)
}

// call takes a callable and its arguments off the stack.
func (m *machine) call() (callable any, args Tuple, err error) {
	v, err := m.pop()
	if err != nil {
		return nil, nil, err
	}
	args, ok := v.(Tuple)
	if !ok {
		return nil, nil, fmt.Errorf("the arguments are no tuple but %s", kind(v))
	}
	callable, err = m.pop()
	return callable, args, err
}

func (m *machine) newObj(Arg) error {
	class, args, err := m.call()
	if err != nil {
		return err
	}
	make, ok := class.(New)
	switch {
	case !ok:
		return fmt.Errorf("the value is no class but %s", kind(class))
	case len(args) > 0:
		return fmt.Errorf("%d arguments where none is known", len(args))
	}
	return m.push(make())
}

func (m *machine) reduce(Arg) error {
	f, args, err := m.call()
	if err != nil {
		return err
	}
	fn, ok := f.(Func)
	if !ok {
		return fmt.Errorf("the value is no function but %s", kind(f))
	}
	v, err := fn(args)
	if err != nil {
		return err
	}
	return m.push(v)
}

func (m *machine) build(Arg) error {
	state, err := m.pop()
	if err != nil {
		return err
	}
	v, err := m.top()
	if err != nil {
		return err
	}
	b, ok := v.(Builder)
	if !ok {
		return fmt.Errorf("the value takes no state: %s", kind(v))
	}
	return b.Build(state)
}

func (m *machine) persID(Arg) error {
	id, err := m.pop()
	if err != nil {
		return err
	}
	if m.options.Persistent == nil {
		return errors.New("persistent ids are not allowed here")
	}
	v, err := m.options.Persistent(id)
	if err != nil {
		return err
	}
	return m.push(v)
}

// kind names v's type in an error, as Python would.
func kind(v any) string {
	switch v.(type) {
	case nil:
		return "None"
	case bool:
		return "a bool"
	case int64, *big.Int:
		return "an int"
	case float64:
		return "a float"
	case string:
		return "a str"
	case []byte:
		return "bytes"
	case Tuple:
		return "a tuple"
	case *List:
		return "a list"
	case *Dict:
		return "a dict"
	case *Set:
		return "a set"
	}
	return "an object"
}
