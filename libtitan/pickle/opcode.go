package pickle

import "strings"

// argKind is how an opcode's argument is laid out.
type argKind uint8

const (
	argNone  argKind = iota
	argU1            // n, unsigned, 1 byte
	argU2            // n, unsigned, 2 bytes
	argI4            // n, signed, 4 bytes
	argU4            // n, unsigned, 4 bytes
	argU8            // n, unsigned, 8 bytes
	argF8            // s, the 8 bytes of a big-endian double
	argStr1          // s, after its length of 1 byte
	argStr4          // s, after its length of 4 bytes
	argStr8          // s, after its length of 8 bytes
	argLine          // s, up to a newline
	argLines         // s, two lines with the newline between them
)

// opcode is one instruction: its name in Python's pickletools, its argument, what it does. An opcode without run is
// one that no caller may allow: it needs code to run, or none of the protocols 2 to 5 write it.
type opcode struct {
	name string
	arg  argKind
	run  func(m *machine, a Arg) error
}

// Arg is a decoded argument: a number, or bytes (of a string, of a LONG, of a BINFLOAT, of a GLOBAL's two lines).
type Arg struct {
	N int64
	S string
}

var opcodes = [256]opcode{
	0x80: {"PROTO", argU1, (*machine).proto},
	0x95: {"FRAME", argU8, (*machine).skip},
	'.':  {"STOP", argNone, (*machine).skip},
	'(':  {"MARK", argNone, (*machine).mark},

	'N':  {"NONE", argNone, func(m *machine, _ Arg) error { return m.push(nil) }},
	0x88: {"NEWTRUE", argNone, func(m *machine, _ Arg) error { return m.push(true) }},
	0x89: {"NEWFALSE", argNone, func(m *machine, _ Arg) error { return m.push(false) }},
	'K':  {"BININT1", argU1, (*machine).int},
	'M':  {"BININT2", argU2, (*machine).int},
	'J':  {"BININT", argI4, (*machine).int},
	0x8a: {"LONG1", argStr1, (*machine).long},
	0x8b: {"LONG4", argStr4, (*machine).long},
	'G':  {"BINFLOAT", argF8, (*machine).float},

	0x8c: {"SHORT_BINUNICODE", argStr1, (*machine).string},
	'X':  {"BINUNICODE", argStr4, (*machine).string},
	0x8d: {"BINUNICODE8", argStr8, (*machine).string},
	'U':  {"SHORT_BINSTRING", argStr1, (*machine).string},
	'T':  {"BINSTRING", argStr4, (*machine).string},
	'C':  {"SHORT_BINBYTES", argStr1, (*machine).bytes},
	'B':  {"BINBYTES", argStr4, (*machine).bytes},
	0x8e: {"BINBYTES8", argStr8, (*machine).bytes},

	')':  {"EMPTY_TUPLE", argNone, func(m *machine, _ Arg) error { return m.push(Tuple(nil)) }},
	0x85: {"TUPLE1", argNone, func(m *machine, _ Arg) error { return m.tupleOf(1) }},
	0x86: {"TUPLE2", argNone, func(m *machine, _ Arg) error { return m.tupleOf(2) }},
	0x87: {"TUPLE3", argNone, func(m *machine, _ Arg) error { return m.tupleOf(3) }},
	't':  {"TUPLE", argNone, (*machine).tuple},
	']':  {"EMPTY_LIST", argNone, func(m *machine, _ Arg) error { return m.push(&List{}) }},
	'a':  {"APPEND", argNone, (*machine).append},
	'e':  {"APPENDS", argNone, (*machine).appends},
	'}':  {"EMPTY_DICT", argNone, func(m *machine, _ Arg) error { return m.push(&Dict{}) }},
	's':  {"SETITEM", argNone, (*machine).setItem},
	'u':  {"SETITEMS", argNone, (*machine).setItems},
	0x8f: {"EMPTY_SET", argNone, func(m *machine, _ Arg) error { return m.push(&Set{}) }},
	0x90: {"ADDITEMS", argNone, (*machine).addItems},
	0x91: {"FROZENSET", argNone, (*machine).frozenSet},

	'q':  {"BINPUT", argU1, (*machine).put},
	'r':  {"LONG_BINPUT", argU4, (*machine).put},
	0x94: {"MEMOIZE", argNone, (*machine).memoize},
	'h':  {"BINGET", argU1, (*machine).get},
	'j':  {"LONG_BINGET", argU4, (*machine).get},

	'c':  {"GLOBAL", argLines, (*machine).global},
	0x93: {"STACK_GLOBAL", argNone, (*machine).stackGlobal},
	0x81: {"NEWOBJ", argNone, (*machine).newObj},
	'R':  {"REDUCE", argNone, (*machine).reduce},
	'b':  {"BUILD", argNone, (*machine).build},
	'Q':  {"BINPERSID", argNone, (*machine).persID},

	'0':  {"POP", argNone, nil},
	'1':  {"POP_MARK", argNone, nil},
	'2':  {"DUP", argNone, nil},
	'F':  {"FLOAT", argLine, nil},
	'I':  {"INT", argLine, nil},
	'L':  {"LONG", argLine, nil},
	'S':  {"STRING", argLine, nil},
	'V':  {"UNICODE", argLine, nil},
	'g':  {"GET", argLine, nil},
	'p':  {"PUT", argLine, nil},
	'P':  {"PERSID", argLine, nil},
	'd':  {"DICT", argNone, nil},
	'l':  {"LIST", argNone, nil},
	'i':  {"INST", argLines, nil},
	'o':  {"OBJ", argNone, nil},
	0x82: {"EXT1", argU1, nil},
	0x83: {"EXT2", argU2, nil},
	0x84: {"EXT4", argI4, nil},
	0x92: {"NEWOBJ_EX", argNone, nil},
	0x96: {"BYTEARRAY8", argStr8, nil},
	0x97: {"NEXT_BUFFER", argNone, nil},
	0x98: {"READONLY_BUFFER", argNone, nil},
}

// OpSet is a set of opcodes.
type OpSet [256]bool

// Ops is the set of the opcodes named, by pickletools' names with spaces between them. Names of opcodes that need
// code to run, and unknown ones, are left out.
func Ops(names string) OpSet {
	byName := map[string]int{}
	for code, op := range opcodes {
		if op.run != nil {
			byName[op.name] = code
		}
	}
	var set OpSet
	for _, name := range strings.Fields(names) {
		if code, ok := byName[name]; ok {
			set[code] = true
		}
	}
	return set
}
