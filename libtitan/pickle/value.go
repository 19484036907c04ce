// Package pickle reads and writes Python pickles without running anything that they ask for.
//
// A pickle is a program for a small stack machine. [Decode] executes only the opcodes that the caller lists and
// resolves only the names that the caller knows, to constructors of the caller's own; anything else is an [Error]
// with the offset where it stands. Lengths are checked against the input before anything is allocated, so a
// hostile file costs no more memory than a few times its size.
//
// Python's values become nil, bool, int64, *[big.Int] (beyond 64 bits), float64, string, []byte, [Tuple], *[List],
// *[Dict] and *[Set]. [Encoder] writes the same values, by protocol 2 or 4.
package pickle

// Tuple is a Python tuple.
type Tuple []any

// List is a Python list; a pointer, since a pickle may append to a list that something holds already, even itself.
type List struct{ Items []any }

// Dict is a Python dict in the order of insertion. A key that was set twice stands twice, the later wins.
type Dict struct{ Pairs []Pair }

// Pair is one entry of a Dict.
type Pair struct{ Key, Value any }

// Set is a Python set or frozenset.
type Set struct {
	Items  []any
	Frozen bool
}

// Global is a name to write that stands for itself: a class, a constant of a module.
type Global struct{ Module, Name string }

// Call is a call to write: what Func gives for Args.
type Call struct {
	Func Global
	Args Tuple
}

// Get finds the value of a string key.
func (d *Dict) Get(key string) (any, bool) {
	for i := len(d.Pairs) - 1; i >= 0; i-- {
		if k, ok := d.Pairs[i].Key.(string); ok && k == key {
			return d.Pairs[i].Value, true
		}
	}
	return nil, false
}

// Func is what a name resolves to when REDUCE may call it.
type Func func(args Tuple) (any, error)

// New is what a name resolves to when NEWOBJ may make an object of it, without arguments.
type New func() any

// Builder is an object that BUILD may give a state to.
type Builder interface{ Build(state any) error }

// Build takes the attributes of a dict that Python subclassed (an OrderedDict's _metadata) and drops them.
func (d *Dict) Build(any) error { return nil }
