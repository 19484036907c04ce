package pickle

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math"
	"math/big"
	"slices"
)

// Encoder writes one pickle as a stream of opcodes. Its methods name the opcodes they write, so a caller that needs
// certain bytes gets them; [Encoder.Value] writes a plain value as Python's pickler would. The first error sticks and
// comes out of [Encoder.Stop].
type Encoder struct {
	w     *bufio.Writer
	proto int
	memo  map[string]int // strings and globals that were put
	count int            // memo slots given away
}

// NewEncoder starts a pickle of protocol 2 or 4 on w.
func NewEncoder(w io.Writer, protocol int) *Encoder {
	e := &Encoder{w: bufio.NewWriter(w), proto: protocol, memo: map[string]int{}}
	e.Op(0x80, byte(protocol))
	return e
}

// Stop ends the pickle and reports the first error of all its writes.
func (e *Encoder) Stop() error {
	e.Op('.')
	return e.w.Flush()
}

// Op writes an opcode and the bytes of its argument.
func (e *Encoder) Op(b ...byte) { e.w.Write(b) }

// Put gives the value on the stack the next memo slot.
func (e *Encoder) Put() int {
	slot := e.count
	e.count++
	switch {
	case e.proto >= 4:
		e.Op(0x94)
	case slot < 256:
		e.Op('q', byte(slot))
	default:
		e.u32('r', uint32(slot))
	}
	return slot
}

// Get pushes the value of a memo slot.
func (e *Encoder) Get(slot int) {
	if slot < 256 {
		e.Op('h', byte(slot))
		return
	}
	e.u32('j', uint32(slot))
}

func (e *Encoder) u32(op byte, n uint32) {
	var b [5]byte
	b[0] = op
	binary.LittleEndian.PutUint32(b[1:], n)
	e.w.Write(b[:])
}

// Global pushes a name and puts it in the memo, or takes it from there.
func (e *Encoder) Global(module, name string) {
	key := module + "\n" + name + "\n"
	if slot, ok := e.memo[key]; ok {
		e.Get(slot)
		return
	}
	if e.proto >= 4 {
		e.Str(module)
		e.Str(name)
		e.Op(0x93)
	} else {
		e.Op('c')
		e.w.WriteString(key)
	}
	e.memo[key] = e.Put()
}

// Str pushes a string and puts it in the memo, or takes it from there.
func (e *Encoder) Str(s string) {
	if slot, ok := e.memo[s]; ok {
		e.Get(slot)
		return
	}
	if e.proto >= 4 && len(s) < 256 {
		e.Op(0x8c, byte(len(s)))
	} else {
		e.u32('X', uint32(len(s)))
	}
	e.w.WriteString(s)
	e.memo[s] = e.Put()
}

// Bool pushes a truth value.
func (e *Encoder) Bool(v bool) {
	if v {
		e.Op(0x88)
	} else {
		e.Op(0x89)
	}
}

// Int pushes an integer in its shortest form.
func (e *Encoder) Int(n int64) {
	switch {
	case n >= 0 && n < 1<<8:
		e.Op('K', byte(n))
	case n >= 0 && n < 1<<16:
		e.Op('M', byte(n), byte(n>>8))
	case n == int64(int32(n)):
		e.u32('J', uint32(n))
	default:
		e.long(big.NewInt(n))
	}
}

// long writes n as little-endian two's complement of the least length.
func (e *Encoder) long(n *big.Int) {
	size := n.BitLen()/8 + 1
	if n.Sign() < 0 {
		size = new(big.Int).Not(n).BitLen()/8 + 1
		n = new(big.Int).Add(n, new(big.Int).Lsh(big.NewInt(1), uint(8*size)))
	}
	b := n.FillBytes(make([]byte, size))
	slices.Reverse(b)
	if size < 256 {
		e.Op(0x8a, byte(size))
	} else {
		e.u32(0x8b, uint32(size))
	}
	e.w.Write(b)
}

// Float pushes a float.
func (e *Encoder) Float(f float64) {
	var b [9]byte
	b[0] = 'G'
	binary.BigEndian.PutUint64(b[1:], math.Float64bits(f))
	e.w.Write(b[:])
}

// Ints pushes a tuple of integers; like Python's, an empty one takes no memo slot.
func (e *Encoder) Ints(t []int64) {
	if len(t) > 3 {
		e.Op('(')
	}
	for _, n := range t {
		e.Int(n)
	}
	e.EndTuple(len(t))
}

// EndTuple makes a tuple of the n values on the stack; above 3 a MARK stands before them.
func (e *Encoder) EndTuple(n int) {
	switch n {
	case 0:
		e.Op(')')
		return
	case 1, 2, 3:
		e.Op(byte(0x84 + n))
	default:
		e.Op('t')
	}
	e.Put()
}

// Value pushes a plain value: nil, bool, int, int64, *big.Int, float64, string, []byte, Tuple, *List, []any, *Dict,
// *Set, [Global], [Call], or map[string]any in the order of its keys. Anything else is an error.
func (e *Encoder) Value(v any) error {
	switch v := v.(type) {
	case nil:
		e.Op('N')
	case bool:
		e.Bool(v)
	case int:
		e.Int(int64(v))
	case int64:
		e.Int(v)
	case *big.Int:
		e.long(v)
	case float64:
		e.Float(v)
	case string:
		e.Str(v)
	case []byte:
		e.bytes(v)
	case Tuple:
		return e.tuple(v)
	case *List:
		return e.list(v.Items)
	case []any:
		return e.list(v)
	case *Dict:
		return e.dict(v.Pairs)
	case *Set:
		return e.set(v)
	case Global:
		e.Global(v.Module, v.Name)
	case Call:
		return e.call(v)
	case map[string]any:
		pairs := make([]Pair, 0, len(v))
		for _, k := range slices.Sorted(maps.Keys(v)) {
			pairs = append(pairs, Pair{k, v[k]})
		}
		return e.dict(pairs)
	default:
		return fmt.Errorf("pickle: a value of Go type %T has no Python form here", v)
	}
	return nil
}

// bytes pushes Python bytes; protocol 2 has no form of its own and spells each byte as a character of latin1.
func (e *Encoder) bytes(b []byte) {
	switch {
	case e.proto >= 4:
		e.u32('B', uint32(len(b)))
		e.w.Write(b)
	case len(b) == 0:
		e.Global("__builtin__", "bytes")
		e.Op(')', 'R')
	default:
		e.Global("_codecs", "encode")
		text := make([]rune, len(b))
		for i, c := range b {
			text[i] = rune(c)
		}
		e.Str(string(text))
		e.Str("latin1")
		e.EndTuple(2)
		e.Op('R')
	}
	e.Put()
}

func (e *Encoder) tuple(t Tuple) error {
	if len(t) > 3 {
		e.Op('(')
	}
	for _, v := range t {
		if err := e.Value(v); err != nil {
			return err
		}
	}
	e.EndTuple(len(t))
	return nil
}

func (e *Encoder) list(items []any) error {
	e.Op(']')
	e.Put()
	if len(items) == 0 {
		return nil
	}
	e.Op('(')
	for _, v := range items {
		if err := e.Value(v); err != nil {
			return err
		}
	}
	e.Op('e')
	return nil
}

// set pushes a set as protocol 2 spells it: a call with a list.
func (e *Encoder) set(s *Set) error {
	name := "set"
	if s.Frozen {
		name = "frozenset"
	}
	e.Global("__builtin__", name)
	if err := e.list(s.Items); err != nil {
		return err
	}
	e.EndTuple(1)
	e.Op('R')
	e.Put()
	return nil
}

func (e *Encoder) call(c Call) error {
	e.Global(c.Func.Module, c.Func.Name)
	if err := e.tuple(c.Args); err != nil {
		return err
	}
	e.Op('R')
	e.Put()
	return nil
}

func (e *Encoder) dict(pairs []Pair) error {
	e.Op('}')
	e.Put()
	if len(pairs) == 0 {
		return nil
	}
	e.Op('(')
	for _, p := range pairs {
		if err := e.Value(p.Key); err != nil {
			return err
		}
		if err := e.Value(p.Value); err != nil {
			return err
		}
	}
	e.Op('u')
	return nil
}
