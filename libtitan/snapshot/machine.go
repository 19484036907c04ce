package snapshot

import (
	"encoding/binary"
	"errors"
	"fmt"

	"titan/libtitan/pickle"
)

// plain are the opcodes of a pickle of plain values: none can name code.
var plain = pickle.Ops("PROTO FRAME MARK STOP NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT SHORT_BINUNICODE BINUNICODE " +
	"BINUNICODE8 EMPTY_DICT EMPTY_LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 SETITEM SETITEMS APPEND APPENDS BINGET LONG_BINGET MEMOIZE BINPUT LONG_BINPUT")

// value is a Python value. A snapshot has tens of millions; this form takes no memory of its own but for containers,
// and those of an event are used again as soon as it has been read.
type value struct {
	kind valueKind
	n    int64 // of a number; of a string, where it is in the file, and its length
	node *node // of a container
}

// lengthBits are those of value.n that hold a string's length.
const lengthBits = 24

type valueKind uint8

const (
	noneValue valueKind = iota
	boolValue
	intValue
	wideValue // an integer of more than 64 bits
	floatValue
	textValue
	listValue // or a tuple
	dictValue
	eventValue   // an event's dict that has been read
	escapedValue // a string that is not in the file as it is: n is its number among them
)

func (k valueKind) String() string {
	return [...]string{"None", "a bool", "an int", "an int of more than 64 bits", "a float", "a str", "a list", "a dict", "an event", "a str"}[k]
}

// node is what a container holds.
type node struct {
	items  []value // a dict's keys and values by turns
	kept   bool    // the memo may give it again
	number int32   // 1 more than that of the frame that a dict is, or of the owner that a list of them is; 0 is none
	events int     // of a list: how many events it begins with
}

// machine runs a pickle of plain values.
type machine struct {
	program *pickle.Program
	memo    *pickle.Memo[value]
	stack   []value
	marks   []int // stack heights
	spare   []*node
	nodes   int                                   // that exist
	size    int                                   // of the file
	dict    func(n *node) (event bool, err error) // called when a dict is full
}

// Limits far above what torch writes, so that a hostile file cannot make us allocate far more than its size.
const (
	maxMarks     = 64 // torch's go 10 deep
	bytesPerNode = 8  // the least that a container and what it stands in take
)

var errStack = errors.New("the stack is empty")

func (m *machine) run() (value, error) {
	for pos := 0; ; {
		op, a, end := m.program.Next(pos)
		if op == '.' {
			v, err := m.top()
			if err != nil {
				return v, m.program.Fail(pos, err)
			}
			return v, nil
		}
		if err := m.step(op, a, end); err != nil {
			return value{}, m.program.Fail(pos, err)
		}
		pos = end
	}
}

func (m *machine) step(op byte, a pickle.Arg, end int) error {
	switch op {
	case 0x94: // MEMOIZE
		v, err := m.top()
		if err == nil && m.memo.Add(v) && v.node != nil {
			v.node.kept = true
		}
		return err
	case 'q', 'r':
		v, err := m.top()
		if err == nil && m.memo.Put(int(a.N), v) && v.node != nil {
			v.node.kept = true
		}
		return err
	case 'h', 'j':
		v, err := m.memo.Get(int(a.N))
		if err != nil {
			return err
		}
		return m.push(v)
	case 'K', 'M', 'J':
		return m.push(value{kind: intValue, n: a.N})
	case 0x8a, 0x8b:
		return m.push(long(a.S))
	case 'X', 0x8c, 0x8d:
		v, err := textAt(end-len(a.S), len(a.S))
		if err != nil {
			return err
		}
		return m.push(v)
	case '(':
		if len(m.marks) == maxMarks {
			return fmt.Errorf("nested more than %d deep", maxMarks)
		}
		m.marks = append(m.marks, len(m.stack))
		return nil
	case ']', '}':
		return m.open(op)
	case 'u', 's':
		return m.update(op == 'u')
	case 'e', 'a':
		return m.extend(op == 'e')
	}
	return m.rare(op, a)
}

func (m *machine) rare(op byte, a pickle.Arg) error {
	switch op {
	case 0x80:
		if a.N > 5 {
			return fmt.Errorf("protocol %d is not known (2 to 5 are)", a.N)
		}
		return nil
	case 0x95: // FRAME
		return nil
	case 'N':
		return m.push(value{})
	case 0x88, 0x89:
		return m.push(value{kind: boolValue, n: int64(0x89 - op)})
	case 'G':
		return m.push(value{kind: floatValue})
	case 't':
		at, err := m.popMark()
		if err != nil {
			return err
		}
		return m.tuple(at)
	case ')':
		return m.tuple(len(m.stack))
	}
	return m.tuple(len(m.stack) - int(op-0x84)) // TUPLE1 to TUPLE3
}

// long reads little-endian two's complement.
func long(s string) value {
	if len(s) > 8 {
		return value{kind: wideValue}
	}
	var b [8]byte
	if len(s) > 0 && s[len(s)-1]&0x80 != 0 {
		b = [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	}
	copy(b[:], s)
	return value{kind: intValue, n: int64(binary.LittleEndian.Uint64(b[:]))}
}

// textAt is a string of the file.
func textAt(at, length int) (value, error) {
	if length >= 1<<lengthBits {
		return value{}, fmt.Errorf("a string of %d bytes", length)
	}
	return value{kind: textValue, n: int64(at)<<lengthBits | int64(length)}, nil
}

// file is what strings lie in.
type file struct {
	data    string
	escaped []string
}

// string is v's text; ok is false if v is none.
func (f *file) string(v value) (s string, ok bool) {
	switch v.kind {
	case textValue:
		at := v.n >> lengthBits
		return f.data[at : at+v.n&(1<<lengthBits-1)], true
	case escapedValue:
		return f.escaped[v.n], true
	}
	return "", false
}

func (m *machine) push(v value) error {
	if len(m.stack) > 1<<16+m.size/bytesPerNode {
		return errors.New("more values on the stack than a snapshot of this size has")
	}
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

func (m *machine) top() (value, error) {
	if len(m.stack) <= m.floor() {
		return value{}, errStack
	}
	return m.stack[len(m.stack)-1], nil
}

// popMark forgets the last MARK; what stood above it begins at the height that comes back.
func (m *machine) popMark() (int, error) {
	if len(m.marks) == 0 {
		return 0, errors.New("no MARK on the stack")
	}
	at := m.floor()
	m.marks = m.marks[:len(m.marks)-1]
	return at, nil
}

func (m *machine) open(op byte) error {
	n, err := m.newNode()
	if err != nil {
		return err
	}
	if op == '}' {
		return m.push(value{kind: dictValue, node: n})
	}
	return m.push(value{kind: listValue, node: n})
}

func (m *machine) newNode() (*node, error) {
	if last := len(m.spare) - 1; last >= 0 {
		n := m.spare[last]
		m.spare = m.spare[:last]
		return n, nil
	}
	if m.nodes++; m.nodes > 1<<10+m.size/bytesPerNode {
		return nil, errors.New("more lists and dicts than a snapshot of this size has")
	}
	return &node{}, nil
}

// recycle takes back a container that nothing holds any more, and what is in it.
func (m *machine) recycle(v value) {
	if v.node == nil || v.node.kept {
		return
	}
	for _, held := range v.node.items {
		m.recycle(held)
	}
	*v.node = node{items: v.node.items[:0]}
	m.spare = append(m.spare, v.node)
}

// filled is what stands for a dict that is full: an event has been read and is only counted.
func (m *machine) filled(v value) (value, error) {
	event, err := m.dict(v.node)
	if err != nil || !event || v.node.kept {
		return v, err
	}
	m.recycle(v)
	return value{kind: eventValue}, nil
}

// tuple makes a tuple of the values from height at on.
func (m *machine) tuple(at int) error {
	if at < m.floor() {
		return errStack
	}
	n, err := m.newNode()
	if err != nil {
		return err
	}
	n.items = append(n.items, m.stack[at:]...)
	m.stack = m.stack[:at]
	return m.push(value{kind: listValue, node: n})
}

// under takes the values above the last MARK, or n of them without one, off the stack. The container below them is
// then on top; the values are valid until the next push.
func (m *machine) under(marked bool, n int, kind valueKind) (items []value, c *node, err error) {
	at := len(m.stack) - n
	if marked {
		if at, err = m.popMark(); err != nil {
			return nil, nil, err
		}
	}
	if at-1 < m.floor() {
		return nil, nil, errStack
	}
	items, m.stack = m.stack[at:], m.stack[:at]
	if v := m.stack[at-1]; v.kind != kind {
		return nil, nil, fmt.Errorf("%s stands where %s should", v.kind, kind)
	}
	return items, m.stack[at-1].node, nil
}

// update adds keys and values to a dict. One that is an event is read at once.
func (m *machine) update(marked bool) error {
	items, d, err := m.under(marked, 2, dictValue)
	if err != nil {
		return err
	}
	if len(items)%2 != 0 {
		return errors.New("a key without a value")
	}
	d.items = append(d.items, items...)
	if !marked {
		return nil
	}
	last := &m.stack[len(m.stack)-1]
	*last, err = m.filled(*last)
	return err
}

// extend adds values to a list.
func (m *machine) extend(marked bool) error {
	items, l, err := m.under(marked, 1, listValue)
	if err != nil {
		return err
	}
	l.add(items...)
	return nil
}

// add appends to a list. Events at its start are only counted.
func (n *node) add(items ...value) {
	for len(items) > 0 && items[0].kind == eventValue && len(n.items) == 0 {
		n.events++
		items = items[1:]
	}
	n.items = append(n.items, items...)
}
