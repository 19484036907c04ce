package pickle

import (
	"math"
	"math/big"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// allOps is every opcode that the machine knows.
func allOps() OpSet {
	var set OpSet
	for code, op := range opcodes {
		set[code] = op.run != nil
	}
	return set
}

// pythonNames are the names that Encoder uses to spell bytes by protocol 2.
func pythonNames(module, name string) (any, bool) {
	switch module + " " + name {
	case "_codecs encode":
		return Func(func(args Tuple) (any, error) {
			var b []byte
			for _, r := range args[0].(string) {
				b = append(b, byte(r))
			}
			return b, nil
		}), true
	case "__builtin__ bytes":
		return Func(func(Tuple) (any, error) { return []byte{}, nil }), true
	}
	return nil, false
}

func encode(t require.TestingT, v any, protocol int) string {
	var b strings.Builder
	e := NewEncoder(&b, protocol)
	require.NoError(t, e.Value(v))
	require.NoError(t, e.Stop())
	return b.String()
}

func anyValue(depth int) *rapid.Generator[any] {
	leaf := []*rapid.Generator[any]{
		rapid.Just[any](nil), rapid.Bool().AsAny(), rapid.Int64().AsAny(), rapid.Int64Range(-70000, 70000).AsAny(),
		rapid.Float64().AsAny(), rapid.String().AsAny(), rapid.SliceOf(rapid.Byte()).AsAny(),
	}
	if depth > 0 {
		inner := rapid.SliceOfN(rapid.Deferred(func() *rapid.Generator[any] { return anyValue(depth - 1) }), 0, 6)
		leaf = append(leaf,
			rapid.Map(inner, func(v []any) any { return Tuple(v) }),
			rapid.Map(inner, func(v []any) any { return &List{v} }),
			rapid.Map(inner, func(v []any) any {
				d := &Dict{}
				for i, x := range v {
					d.Pairs = append(d.Pairs, Pair{int64(i), x})
				}
				return d
			}))
	}
	return rapid.OneOf(leaf...)
}

func TestValuesSurviveBothProtocols(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := anyValue(3).Draw(t, "value")
		for _, protocol := range []int{2, 4} {
			data := encode(t, v, protocol)
			got, err := Decode(data, Options{Opcodes: allOps(), Globals: pythonNames})
			require.NoError(t, err)
			require.Equal(t, data, encode(t, got, protocol))
		}
	})
}

func TestIntegersOfEverySize(t *testing.T) {
	huge, _ := new(big.Int).SetString("-1180591620717411303424", 10)
	for _, n := range []any{int64(0), int64(255), int64(256), int64(65535), int64(65536), int64(-1), int64(1 << 40),
		int64(math.MinInt64), int64(math.MaxInt64), huge, new(big.Int).Neg(huge), new(big.Int).Lsh(big.NewInt(1), 5000)} {
		got, err := Decode(encode(t, n, 2), Options{Opcodes: allOps()})
		require.NoError(t, err)
		require.Equal(t, n, got)
	}
}

func TestBytesThatPythonWrites(t *testing.T) {
	// pickle.dumps({"a": (1, -1), "b": [True, None, 2.5]}, protocol=2)
	const data = "\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01K\x01J\xff\xff\xff\xff\x86q\x02X\x01\x00\x00\x00bq\x03]q\x04(\x88NG@\x04\x00\x00\x00\x00\x00\x00eu."
	v := map[string]any{"a": Tuple{1, -1}, "b": []any{true, nil, 2.5}}
	require.Equal(t, data, encode(t, v, 2))
}

func TestAListMayHoldItself(t *testing.T) {
	v, err := Decode("\x80\x02]q\x00h\x00a.", Options{Opcodes: allOps()})
	require.NoError(t, err)
	list := v.(*List)
	require.Same(t, list, list.Items[0])
}

func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct{ data, want string }{
		"empty":              {"", "offset 0: the pickle ends before its STOP"},
		"no stop":            {"\x80\x02N", "offset 3: the pickle ends before its STOP"},
		"code":               {"cos\nsystem\nX\x02\x00\x00\x00ls\x85R.", `offset 0: GLOBAL: "system" of module "os" is not allowed here`},
		"code by strings":    {"\x8c\x02os\x8c\x06system\x93.", `offset 12: STACK_GLOBAL: "system" of module "os" is not allowed here`},
		"text opcode":        {"I42\n.", "offset 0: INT: the opcode is not allowed here"},
		"no opcode":          {"\xff.", "offset 0: 0xff is no opcode"},
		"length":             {"X\xff\xff\xff\x7fab.", "offset 0: BINUNICODE: a length of 2147483647 where 3 bytes are left"},
		"length of 64 bits":  {"\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", "offset 0: BINUNICODE8: a length of 18446744073709551615 where 1 bytes are left"},
		"memo far away":      {"Nr\xff\xff\xff\xffj\xff\xff\xff\xff.", "offset 1: LONG_BINPUT: memo slot 4294967295 is beyond any that 12 bytes can fill"},
		"memo empty":         {"h\x05.", "offset 0: BINGET: memo slot 5 is empty"},
		"nesting":            {strings.Repeat("(", 1001) + ".", "offset 1000: MARK: nested more than 1000 deep"},
		"stack":              {"\x86.", "offset 0: TUPLE2: the stack is empty"},
		"mark":               {"N(\x85.", "offset 2: TUPLE1: the stack is empty"},
		"no mark":            {"t.", "offset 0: TUPLE: no MARK on the stack"},
		"nothing at the end": {"(.", "offset 1: STOP: the stack is empty"},
		"odd dict":           {"}(Nu.", "offset 3: SETITEMS: a key without a value"},
		"append to a dict":   {"}Na.", "offset 2: APPEND: the value is no list but a dict"},
		"call of a string":   {"U\x01a)R.", "offset 4: REDUCE: the value is no function but a str"},
		"state of a string":  {"U\x01aNb.", "offset 4: BUILD: the value takes no state: a str"},
		"persistent id":      {"NQ.", "offset 1: BINPERSID: persistent ids are not allowed here"},
		"protocol":           {"\x80\x09N.", "offset 0: PROTO: protocol 9 is not known (2 to 5 are)"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Decode(c.data, Options{Opcodes: allOps()})
			require.EqualError(t, err, "pickle: "+c.want)
			var typed *Error
			require.ErrorAs(t, err, &typed)
			require.Equal(t, 3, typed.ExitCode())
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add("\x80\x02}q\x00(X\x01\x00\x00\x00aK\x01K\x02\x86q\x01X\x01\x00\x00\x00bh\x01u.")
	f.Add("\x80\x04\x95\x0a\x00\x00\x00\x00\x00\x00\x00]\x94(K\x01\x8f(K\x02\x90(N\x91C\x01ae.")
	f.Add("\x8a\x02\xff\x00G@\x04\x00\x00\x00\x00\x00\x00\x86.")
	f.Fuzz(func(t *testing.T, data string) {
		v, err := Decode(data, Options{Opcodes: allOps(), Globals: pythonNamesSafe, Persistent: func(id any) (any, error) { return id, nil }})
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		_ = kind(v)
	})
}

// pythonNamesSafe knows a function and a class that take anything.
func pythonNamesSafe(module, _ string) (any, bool) {
	switch module {
	case "f":
		return Func(func(args Tuple) (any, error) { return args, nil }), true
	case "c":
		return New(func() any { return &Dict{} }), true
	}
	return nil, false
}
