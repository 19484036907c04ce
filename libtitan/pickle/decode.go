package pickle

import (
	"errors"
	"fmt"
)

// Limits on what a program may build, far above what Python writes.
const maxMarks = 1000 // lists within dicts within tuples

// Options say what a pickle may do.
type Options struct {
	Opcodes    OpSet
	Globals    func(module, name string) (any, bool) // resolves a name: to a Func, a New or a value; nil knows none
	Persistent func(id any) (any, error)             // resolves BINPERSID; nil refuses
}

// Decode runs the pickle at the start of data and returns the value it leaves. Strings share data's memory: clone
// what outlives it. A value may hold itself (a list in a list), so whoever walks one bounds the depth.
func Decode(data string, o Options) (any, error) {
	p, err := Check(data, &o.Opcodes)
	if err != nil {
		return nil, err
	}
	return p.Run(o)
}

// Run is [Decode] for a program that has been checked; the opcodes of o do not count.
func (p *Program) Run(o Options) (any, error) {
	m := machine{options: o, memo: NewMemo[any](p)}
	for pos := 0; ; {
		op, a, end := p.Next(pos)
		err := opcodes[op].run(&m, a)
		if err == nil && op == '.' {
			var v any
			if v, err = m.pop(); err == nil {
				return v, nil
			}
		}
		if err != nil {
			return nil, p.Fail(pos, err)
		}
		pos = end
	}
}

// machine is Python's unpickling machine.
type machine struct {
	options Options
	stack   []any
	marks   []int // stack heights
	memo    *Memo[any]
	slab    []any // where tuples are cut from
	ints    [256]struct {
		n     int64
		boxed any
	}
}

func (m *machine) skip(Arg) error { return nil }

func (m *machine) proto(a Arg) error {
	if a.N > 5 {
		return fmt.Errorf("protocol %d is not known (2 to 5 are)", a.N)
	}
	return nil
}

func (m *machine) push(v any) error {
	m.stack = append(m.stack, v)
	return nil
}

// floor is the height below which the values belong to an outer MARK.
func (m *machine) floor() int {
	if len(m.marks) == 0 {
		return 0
	}
	return m.marks[len(m.marks)-1]
}

var errStack = errors.New("the stack is empty")

func (m *machine) pop() (any, error) {
	n := len(m.stack) - 1
	if n < m.floor() {
		return nil, errStack
	}
	v := m.stack[n]
	m.stack = m.stack[:n]
	return v, nil
}

func (m *machine) top() (any, error) {
	if len(m.stack) <= m.floor() {
		return nil, errStack
	}
	return m.stack[len(m.stack)-1], nil
}

func (m *machine) mark(Arg) error {
	if len(m.marks) == maxMarks {
		return fmt.Errorf("nested more than %d deep", maxMarks)
	}
	m.marks = append(m.marks, len(m.stack))
	return nil
}

// popMark takes everything above the last MARK off the stack; the result is valid until the next push.
func (m *machine) popMark() ([]any, error) {
	if len(m.marks) == 0 {
		return nil, errors.New("no MARK on the stack")
	}
	at := m.floor()
	m.marks = m.marks[:len(m.marks)-1]
	items := m.stack[at:]
	m.stack = m.stack[:at]
	return items, nil
}

func (m *machine) put(a Arg) error {
	v, err := m.top()
	if err != nil {
		return err
	}
	m.memo.Put(int(a.N), v)
	return nil
}

func (m *machine) memoize(Arg) error {
	v, err := m.top()
	if err != nil {
		return err
	}
	m.memo.Add(v)
	return nil
}

func (m *machine) get(a Arg) error {
	v, err := m.memo.Get(int(a.N))
	if err != nil {
		return err
	}
	return m.push(v)
}
