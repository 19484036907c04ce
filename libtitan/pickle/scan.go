package pickle

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

var errNoStop = errors.New("the pickle ends before its STOP")

// next decodes the opcode at pos and its argument, and returns the position after them.
func next(data string, pos int) (op byte, a Arg, end int, err error) {
	if pos >= len(data) {
		return 0, a, pos, errNoStop
	}
	op = data[pos]
	kind := argKinds[op]
	if kind == argNone {
		return op, a, pos + 1, nil
	}
	rest := data[pos+1:]
	switch { // the most frequent first, and here: readArg costs a call
	case kind == argU1 && len(rest) >= 1:
		return op, Arg{N: int64(rest[0])}, pos + 2, nil
	case kind == argU4 && len(rest) >= 4:
		return op, Arg{N: int64(uint32(rest[0]) | uint32(rest[1])<<8 | uint32(rest[2])<<16 | uint32(rest[3])<<24)}, pos + 5, nil
	case kind == argU2 && len(rest) >= 2:
		return op, Arg{N: int64(rest[0]) | int64(rest[1])<<8}, pos + 3, nil
	}
	a, n, err := readArg(rest, kind)
	return op, a, pos + 1 + n, err
}

// argKinds is the arg of every opcode, close together.
var argKinds = func() (kinds [256]argKind) {
	for op := range opcodes {
		kinds[op] = opcodes[op].arg
	}
	return kinds
}()

// readArg decodes an argument at the start of s, and says how many bytes it takes.
func readArg(s string, kind argKind) (Arg, int, error) {
	if kind == argLine || kind == argLines {
		return readLines(s, 1+int(kind-argLine))
	}
	width := argWidth[kind]
	if len(s) < width {
		return Arg{}, 0, io.ErrUnexpectedEOF
	}
	var n uint64
	switch width {
	case 1:
		n = uint64(s[0])
	case 2:
		n = uint64(s[0]) | uint64(s[1])<<8
	case 4:
		n = uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24
	case 8:
		n = binary.LittleEndian.Uint64([]byte(s[:8]))
	}
	switch kind {
	case argI4:
		return Arg{N: int64(int32(n))}, width, nil
	case argF8:
		return Arg{S: s[:8]}, width, nil
	case argStr1, argStr4, argStr8:
		if n > uint64(len(s)-width) {
			return Arg{}, 0, fmt.Errorf("a length of %d where %d bytes are left", n, len(s)-width)
		}
		return Arg{S: s[width : width+int(n)]}, width + int(n), nil
	}
	return Arg{N: int64(n)}, width, nil
}

// argWidth is the size in bytes of an argument, or of its length.
var argWidth = [...]int{argU1: 1, argU2: 2, argI4: 4, argU4: 4, argU8: 8, argF8: 8, argStr1: 1, argStr4: 4, argStr8: 8, argLines: 0}

func readLines(s string, count int) (Arg, int, error) {
	end := -1
	for range count {
		i := strings.IndexByte(s[end+1:], '\n')
		if i < 0 {
			return Arg{}, 0, errors.New("a line without an end")
		}
		end += 1 + i
	}
	return Arg{S: s[:end]}, end + 1, nil
}

// Program is a pickle whose opcodes and lengths are checked, up to its STOP.
type Program struct {
	data  string
	reads bitset // memo slots that are read
}

// Check walks a pickle once without running it: it checks opcodes and lengths up to STOP and notes which memo slots
// are read. Python memoizes nearly every value and reads few back; the others need no slot.
func Check(data string, allowed *OpSet) (*Program, error) {
	p := &Program{data: data}
	steps := stepsOver(allowed)
	for pos := 0; ; {
		for pos < len(data) && steps[data[pos]] > 0 {
			pos += steps[data[pos]]
		}
		op, a, end, err := next(data, pos)
		if err == nil && !allowed[op] {
			err = refused(op)
		}
		if err == nil && (op == 'r' || op == 'j') && a.N > int64(len(data)) {
			err = fmt.Errorf("memo slot %d is beyond any that %d bytes can fill", a.N, len(data))
		}
		if err != nil {
			return nil, &Error{min(pos, len(data)), opcodes[byteAt(data, pos)].name, err}
		}
		pos = end
		switch op {
		case '.':
			p.data = data[:end]
			return p, nil
		case 'h', 'j':
			p.reads.set(int(a.N))
		}
	}
}

// stepsOver is the length of each instruction that needs no look at its argument; 0 for the others.
func stepsOver(allowed *OpSet) (steps [256]int) {
	for op, ok := range allowed {
		if ok && op != '.' && argKinds[op] == argNone {
			steps[op] = 1
		}
	}
	return steps
}

// Len is the program's length in bytes, its STOP included.
func (p *Program) Len() int { return len(p.data) }

// Data is the program's bytes.
func (p *Program) Data() string { return p.data }

// Next decodes the instruction at pos, which is 0 or an end that it gave.
func (p *Program) Next(pos int) (op byte, a Arg, end int) {
	op, a, end, _ = next(p.data, pos) // checked
	return op, a, end
}

// Fail is an error of the instruction at pos.
func (p *Program) Fail(pos int, err error) error {
	return &Error{pos, opcodes[byteAt(p.data, pos)].name, err}
}

func byteAt(data string, pos int) byte {
	if pos < len(data) {
		return data[pos]
	}
	return 0xff // no opcode, so no name
}

func refused(op byte) error {
	if opcodes[op].name == "" {
		return fmt.Errorf("0x%02x is no opcode", op)
	}
	return errors.New("the opcode is not allowed here")
}
