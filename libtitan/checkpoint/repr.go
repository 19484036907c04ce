package checkpoint

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"unicode"

	"titan/libtitan/dtype"
	"titan/libtitan/pickle"
)

// LineName is a name as it is printed: quoted where it would not stay on its line, whatever a stranger calls an item.
func LineName(fqn string) string {
	if strings.ContainsFunc(fqn, unicode.IsControl) {
		return strconv.Quote(fqn)
	}
	return fqn
}

// Repr spells a value that [Reader.Object] gave as Python's repr does; bytes are told by length alone.
func Repr(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		return map[bool]string{true: "True", false: "False"}[v]
	case int64:
		return strconv.FormatInt(v, 10)
	case *big.Int:
		return v.String()
	case float64:
		return reprFloat(v)
	case string:
		return strconv.Quote(v)
	case []byte:
		return fmt.Sprintf("<%d bytes>", len(v))
	case dtype.DType:
		return "torch." + v.String()
	case Size:
		return strings.ReplaceAll("torch.Size("+fmt.Sprint([]int64(v))+")", " ", ", ")
	case Device:
		return "torch.device(" + strconv.Quote(string(v)) + ")"
	case *TensorValue:
		return fmt.Sprintf("<tensor %s %v>", v.DType, v.Shape)
	case pickle.Tuple:
		if len(v) == 1 {
			return "(" + Repr(v[0]) + ",)"
		}
		return "(" + reprAll(v) + ")"
	case []any:
		return "[" + reprAll(v) + "]"
	case *pickle.Set:
		return "{" + reprAll(v.Items) + "}"
	case *pickle.Dict:
		items := make([]string, len(v.Pairs))
		for i, p := range v.Pairs {
			items[i] = Repr(p.Key) + ": " + Repr(p.Value)
		}
		return "{" + strings.Join(items, ", ") + "}"
	}
	return fmt.Sprint(v)
}

func reprAll(items []any) string {
	out := make([]string, len(items))
	for i, v := range items {
		out[i] = Repr(v)
	}
	return strings.Join(out, ", ")
}

// reprFloat is the shortest decimal, with ".0" where it would read as an int.
func reprFloat(x float64) string {
	s := formatFloat(x, dtype.Float64)
	if strings.Trim(s, "-0123456789") == "" {
		s += ".0"
	}
	return s
}
