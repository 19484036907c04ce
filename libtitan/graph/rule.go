package graph

import (
	"fmt"
	"strings"

	"titan/libtitan/dtype"
)

// infer gives the types of n's results by its op's rule, or an *Error that names the letter that disagrees.
func infer(n *Node) ([]Type, error) {
	left, right, ok := strings.Cut(n.Op.Rule(n), "->")
	if !ok {
		return nil, n.errorf("rule %q has no arrow", n.Op.Rule(n))
	}
	size, err := letterSizes(n, left)
	if err != nil {
		return nil, err
	}
	var dts []dtype.DType
	if n.Op.DTypes != nil {
		dts = n.Op.DTypes(n)
	}
	terms := strings.Split(right, ",")
	types := make([]Type, len(terms))
	for i, term := range terms {
		types[i].Shape = make([]int, len(term))
		for d := range len(term) {
			if types[i].Shape[d], ok = size[term[d]]; !ok {
				return nil, n.errorf("no size for %c in rule %s", term[d], n.Op.Rule(n))
			}
		}
		if dts != nil {
			types[i].DType = dts[i]
		} else {
			types[i].DType = n.In[0].DType
		}
	}
	return types, nil
}

// letterSizes finds what each letter of a rule stands for: the op says it, or an input has it, whose terms left lists.
func letterSizes(n *Node, left string) (map[byte]int, error) {
	size := map[byte]int{}
	if n.Op.Sizes != nil {
		size = n.Op.Sizes(n)
	}
	terms := splitTerms(left, len(n.In))
	if len(terms) != len(n.In) {
		return nil, n.errorf("%d inputs for rule %s", len(n.In), n.Op.Rule(n))
	}
	for i, term := range terms {
		shape := n.In[i].Shape
		if len(term) != len(shape) {
			return nil, n.errorf("input %d has shape %v, rule %s wants %d dims", i, shape, n.Op.Rule(n), len(term))
		}
		for d := range len(term) {
			if have, ok := size[term[d]]; ok && have != shape[d] {
				return nil, n.errorf("input %d has shape %v, but %c is %d in rule %s", i, shape, term[d], have, n.Op.Rule(n))
			}
			size[term[d]] = shape[d]
		}
	}
	return size, nil
}

// splitTerms gives the terms of a rule's inputs: of one scalar, too, nothing stands there.
func splitTerms(left string, inputs int) []string {
	if left == "" && inputs == 0 {
		return nil
	}
	return strings.Split(left, ",")
}

func (n *Node) errorf(format string, args ...any) *Error {
	return &Error{n.FQN, n.Op.Name, fmt.Sprintf(format, args...)}
}
