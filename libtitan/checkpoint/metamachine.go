package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"titan/libtitan/pickle"
)

// A .metadata of a 405B model holds millions of small objects of seven classes. metaMachine runs its pickle with
// values that hold no pointer and lie in a few long tables, so that a chunk costs no allocation of its own and the
// garbage collector has next to nothing to look at.

// metaKind says what a metaValue is.
type metaKind uint8

const (
	metaNone    metaKind = iota
	metaBool             // n: 0 or 1
	metaInt              // n
	metaStr              // n: place in strs
	metaTuple            // n: place in tuples; size elements
	metaSize             // n: place in ints; size elements: a torch.Size
	metaList             // n: place in lists
	metaDict             // n: place in dicts
	metaDType            // n: the dtype
	metaClass            // n: place in metaClasses
	metaFunc             // n: place in metaFuncs
	metaObject           // n: place in the table of its class; size: the class
	metaIgnored          // a value that nothing here reads: a layout, a path
)

// metaValue is a value on the stack or in a container.
type metaValue struct {
	kind metaKind
	size int32
	n    int64
}

// metaDictPairs are alternating keys and values, in order of insertion.
type metaDictPairs struct {
	items []metaValue
	kept  bool // the memo may give it again
}

// metaMachine is Python's unpickling machine for a .metadata.
type metaMachine struct {
	program *pickle.Program
	data    string // the program's bytes
	slow    bool   // one instruction at a time, to hold fast to
	memo    *pickle.Memo[metaValue]
	stack   []metaValue
	marks   []int // stack heights
	limit   int   // values at once, on the stack and in containers
	held    int   // values in containers

	strs   []string // clones: the program's memory does not stay
	intern map[string]int64
	ints   []int64
	tuples []metaValue
	kept   int // tuples below this place may be given again by the memo
	lists  [][]metaValue
	dicts  []metaDictPairs
	spare  []int64 // dicts that can be used again

	metaObjects
}

const maxMetaMarks = 1000 // lists within dicts within tuples

func newMetaMachine(p *pickle.Program) *metaMachine {
	const perInt, perChunk = 20, 132 // bytes of a pickle by PyTorch; only speed depends on them
	m := &metaMachine{
		program: p, data: p.Data(), memo: pickle.NewMemo[metaValue](p), intern: map[string]int64{},
		limit: 1<<20 + p.Len()/4,
		ints:  make([]int64, 0, p.Len()/perInt),
	}
	m.chunks = make([]metaChunk, 0, p.Len()/perChunk)
	m.indices = make([]metaIndex, 0, p.Len()/perChunk)
	m.storages = make([]metaStorage, 0, p.Len()/perChunk)
	return m
}

// run executes the program and returns the value that it leaves.
func (m *metaMachine) run() (metaValue, error) {
	for pos := 0; ; {
		op, a, end := m.program.Next(pos)
		if op == '.' {
			v, err := m.pop()
			if err != nil {
				return v, m.program.Fail(pos, err)
			}
			return v, nil
		}
		var err error
		if op == 'h' || op == 'j' {
			end, err = m.get(int(a.N), end)
		} else {
			err = m.step(op, a)
		}
		if err != nil {
			return metaValue{}, m.program.Fail(pos, err)
		}
		pos = end
	}
}

// get pushes the value of a memo slot and goes on from pos: where it is a name, several instructions can be done at
// once.
func (m *metaMachine) get(slot, pos int) (end int, err error) {
	v, err := m.memo.Get(slot)
	if err == nil {
		err = m.push(v)
	}
	if err != nil || m.slow || v.kind != metaFunc && v.kind != metaClass {
		return pos, err
	}
	return m.fast(v, pos)
}

// step executes one instruction. It is a switch, since a table of functions costs twice the time here.
func (m *metaMachine) step(op byte, a pickle.Arg) error {
	switch op {
	case 0x94: // MEMOIZE
		v, err := m.top()
		if err == nil && m.memo.Add(v) {
			m.keep(v)
		}
		return err
	case 'q', 'r':
		v, err := m.top()
		if err == nil && m.memo.Put(int(a.N), v) {
			m.keep(v)
		}
		return err
	case 'K', 'M', 'J':
		return m.push(metaValue{kind: metaInt, n: a.N})
	case '(':
		if len(m.marks) == maxMetaMarks {
			return fmt.Errorf("nested more than %d deep", maxMetaMarks)
		}
		m.marks = append(m.marks, len(m.stack))
		return nil
	case ')':
		return m.push(metaValue{kind: metaTuple, n: int64(len(m.tuples))})
	case 0x85, 0x86, 0x87:
		return m.tuple(len(m.stack) - int(op-0x84))
	case 't':
		at, err := m.popMark()
		if err != nil {
			return err
		}
		return m.tuple(at)
	case '}':
		return m.newDict()
	case ']':
		m.lists = append(m.lists, nil)
		return m.push(metaValue{kind: metaList, n: int64(len(m.lists) - 1)})
	case 0x81:
		return m.newObject()
	case 'R':
		return m.reduce()
	case 'b':
		return m.build()
	}
	return m.rare(op, a)
}

// rare executes what a chunk does not need.
func (m *metaMachine) rare(op byte, a pickle.Arg) error {
	switch op {
	case 'N':
		return m.push(metaValue{})
	case 0x88, 0x89:
		return m.push(metaValue{kind: metaBool, n: int64(0x89 - op)})
	case 0x8a:
		return m.long(a.S)
	case 'X', 0x8c, 0x8d:
		return m.push(m.str(a.S))
	case 'a':
		return m.extend(len(m.stack) - 1)
	case 's':
		return m.update(len(m.stack) - 2)
	case 'e', 'u':
		at, err := m.popMark()
		if err == nil && op == 'e' {
			err = m.extend(at)
		} else if err == nil {
			err = m.update(at)
		}
		return err
	case 'c':
		module, name, _ := strings.Cut(a.S, "\n")
		return m.global(module, name)
	case 0x93:
		return m.stackGlobal()
	case 0x80:
		if a.N > 5 {
			return fmt.Errorf("protocol %d is not known (2 to 5 are)", a.N)
		}
	}
	return nil // FRAME
}

var errMetaStack = errors.New("the stack is empty")

func (m *metaMachine) push(v metaValue) error {
	if len(m.stack) == cap(m.stack) {
		if err := m.room(); err != nil {
			return err
		}
	}
	m.stack = append(m.stack, v)
	return nil
}

// room refuses more values than a pickle of its size comes near to.
func (m *metaMachine) room() error {
	if len(m.stack)+m.held >= m.limit || len(m.ints) >= m.limit {
		return fmt.Errorf("more than %d values in a pickle of %d bytes", m.limit, m.program.Len())
	}
	return nil
}

// floor is the height below which the values belong to an outer MARK.
func (m *metaMachine) floor() int {
	if len(m.marks) == 0 {
		return 0
	}
	return m.marks[len(m.marks)-1]
}

func (m *metaMachine) top() (metaValue, error) {
	if len(m.stack) <= m.floor() {
		return metaValue{}, errMetaStack
	}
	return m.stack[len(m.stack)-1], nil
}

func (m *metaMachine) pop() (metaValue, error) {
	v, err := m.top()
	if err == nil {
		m.stack = m.stack[:len(m.stack)-1]
	}
	return v, err
}

// popMark forgets the last MARK and says where its values begin.
func (m *metaMachine) popMark() (at int, err error) {
	if len(m.marks) == 0 {
		return 0, errors.New("no MARK on the stack")
	}
	at = m.floor()
	m.marks = m.marks[:len(m.marks)-1]
	return at, nil
}

// keep notes that the memo may give v again, so that its place is not used for another value.
func (m *metaMachine) keep(v metaValue) {
	switch v.kind {
	case metaTuple:
		m.kept = len(m.tuples)
	case metaDict:
		m.dicts[v.n].kept = true
	}
}

func (m *metaMachine) str(s string) metaValue {
	at, ok := m.intern[s]
	if !ok {
		at = int64(len(m.strs))
		s = strings.Clone(s)
		m.strs = append(m.strs, s)
		m.intern[s] = at
	}
	return metaValue{kind: metaStr, n: at}
}

// long pushes a little-endian integer of two's complement; one beyond 64 bits is nothing that is read here.
func (m *metaMachine) long(s string) error {
	if len(s) > 8 {
		return m.push(metaValue{kind: metaIgnored})
	}
	var b [8]byte
	if len(s) > 0 && s[len(s)-1]&0x80 != 0 {
		b = [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	}
	copy(b[:], s)
	return m.push(metaValue{kind: metaInt, n: int64(binary.LittleEndian.Uint64(b[:]))})
}

// tuple makes one of the values from place at of the stack.
func (m *metaMachine) tuple(at int) error {
	if at < m.floor() {
		return errMetaStack
	}
	v := metaValue{metaTuple, int32(len(m.stack) - at), int64(len(m.tuples))}
	m.tuples = append(m.tuples, m.stack[at:]...)
	m.held += len(m.stack) - at
	m.stack = append(m.stack[:at], v)
	return m.room()
}

func (m *metaMachine) elements(t metaValue) []metaValue { return m.tuples[t.n : t.n+int64(t.size)] }

// below is the container that takes the values from place at of the stack.
func (m *metaMachine) below(at int, kind metaKind, name string) (metaValue, error) {
	if at-1 < m.floor() {
		return metaValue{}, errMetaStack
	}
	if v := m.stack[at-1]; v.kind == kind {
		return v, nil
	}
	return metaValue{}, fmt.Errorf("the value is no %s", name)
}

func (m *metaMachine) extend(at int) error {
	list, err := m.below(at, metaList, "list")
	if err != nil {
		return err
	}
	m.lists[list.n] = append(m.lists[list.n], m.stack[at:]...)
	m.held += len(m.stack) - at
	m.stack = m.stack[:at]
	return m.room()
}

func (m *metaMachine) newDict() error {
	if n := len(m.spare); n > 0 {
		v := metaValue{kind: metaDict, n: m.spare[n-1]}
		m.spare = m.spare[:n-1]
		return m.push(v)
	}
	m.dicts = append(m.dicts, metaDictPairs{})
	return m.push(metaValue{kind: metaDict, n: int64(len(m.dicts) - 1)})
}

func (m *metaMachine) update(at int) error {
	dict, err := m.below(at, metaDict, "dict")
	if err != nil {
		return err
	}
	if (len(m.stack)-at)%2 != 0 {
		return errors.New("a key without a value")
	}
	d := &m.dicts[dict.n]
	if more := len(m.stack) - at; len(d.items)+more > cap(d.items) {
		d.items = slices.Grow(d.items, max(more, len(d.items))) // storage_data comes in a thousand parts
	}
	d.items = append(d.items, m.stack[at:]...)
	m.held += len(m.stack) - at
	m.stack = m.stack[:at]
	return m.room()
}
