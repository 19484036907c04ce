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
func next(data string, pos int) (op byte, a arg, end int, err error) {
	if pos >= len(data) {
		return 0, a, pos, errNoStop
	}
	op = data[pos]
	kind := opcodes[op].arg
	if kind == argNone {
		return op, a, pos + 1, nil
	}
	a, n, err := readArg(data[pos+1:], kind)
	return op, a, pos + 1 + n, err
}

// readArg decodes an argument at the start of s, and says how many bytes it takes.
func readArg(s string, kind argKind) (arg, int, error) {
	if kind == argLine || kind == argLines {
		return readLines(s, 1+int(kind-argLine))
	}
	width := argWidth[kind]
	if len(s) < width {
		return arg{}, 0, io.ErrUnexpectedEOF
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
		return arg{n: int64(int32(n))}, width, nil
	case argF8:
		return arg{s: s[:8]}, width, nil
	case argStr1, argStr4, argStr8:
		if n > uint64(len(s)-width) {
			return arg{}, 0, fmt.Errorf("a length of %d where %d bytes are left", n, len(s)-width)
		}
		return arg{s: s[width : width+int(n)]}, width + int(n), nil
	}
	return arg{n: int64(n)}, width, nil
}

// argWidth is the size in bytes of an argument, or of its length.
var argWidth = [...]int{argU1: 1, argU2: 2, argI4: 4, argU4: 4, argU8: 8, argF8: 8, argStr1: 1, argStr4: 4, argStr8: 8, argLines: 0}

func readLines(s string, count int) (arg, int, error) {
	end := -1
	for range count {
		i := strings.IndexByte(s[end+1:], '\n')
		if i < 0 {
			return arg{}, 0, errors.New("a line without an end")
		}
		end += 1 + i
	}
	return arg{s: s[:end]}, end + 1, nil
}

// scan walks the program once without running it: it checks opcodes and lengths up to STOP and notes which memo slots
// are read. Python memoizes nearly every value and reads few back; the others need no slot.
func scan(data string, allowed *OpSet) (memo, error) {
	var read bitset
	for pos := 0; ; {
		op, a, end, err := next(data, pos)
		if err == nil && !allowed[op] {
			err = refused(op)
		}
		if err == nil && (op == 'r' || op == 'j') && a.n > int64(len(data)) {
			err = fmt.Errorf("memo slot %d is beyond any that %d bytes can fill", a.n, len(data))
		}
		if err != nil {
			return memo{}, &Error{pos, opcodes[byteAt(data, pos)].name, err}
		}
		switch op {
		case '.':
			return newMemo(read), nil
		case 'h', 'j':
			read.set(int(a.n))
		}
		pos = end
	}
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
