package snapshot

import (
	"errors"
	"fmt"

	"titan/libtitan/alloc"
)

// get finds the value of a key, nil if there is none. A key that was set twice counts as it was set last.
func (f *file) get(n *node, key string) *value {
	for i := len(n.items) - 2; i >= 0; i -= 2 {
		if s, ok := f.string(n.items[i]); ok && s == key {
			return &n.items[i+1]
		}
	}
	return nil
}

// has reports whether a dict has a key, which torch writes first.
func (f *file) has(n *node, first string) bool {
	if len(n.items) > 0 {
		if s, ok := f.string(n.items[0]); ok && s == first {
			return true
		}
	}
	return f.get(n, first) != nil
}

// fields calls do for every key of a dict's items.
func (f *file) fields(items []value, do func(key string, v value) error) error {
	for i := 0; i < len(items); i += 2 {
		key, ok := f.string(items[i])
		if !ok {
			return fmt.Errorf("%s as a key", items[i].kind)
		}
		if err := do(key, items[i+1]); err != nil {
			return fmt.Errorf("%.40s: %w", key, err)
		}
	}
	return nil
}

func (f *file) fieldsOf(v value, do func(key string, v value) error) error {
	d, err := dictItems(v)
	if err != nil {
		return err
	}
	return f.fields(d, do)
}

func dictItems(v value) ([]value, error) {
	if v.kind != dictValue {
		return nil, fmt.Errorf("%s where a dict should be", v.kind)
	}
	return v.node.items, nil
}

func items(v value) ([]value, error) {
	if v.kind != listValue {
		return nil, fmt.Errorf("%s where a list should be", v.kind)
	}
	return v.node.items, nil
}

func (f *file) text(v value) (string, error) {
	s, ok := f.string(v)
	if !ok && v.kind != noneValue {
		return "", fmt.Errorf("%s where a str should be", v.kind)
	}
	return s, nil
}

func number(v value) (int64, error) {
	if v.kind != intValue {
		return 0, fmt.Errorf("%s where a whole number should be", v.kind)
	}
	return v.n, nil
}

func poolID(v value) (id alloc.PoolID, err error) {
	pair, err := items(v)
	if err != nil || len(pair) != len(id) {
		return id, errors.New("no pair")
	}
	for i := range id {
		if id[i], err = number(pair[i]); err != nil {
			return id, err
		}
	}
	return id, nil
}
