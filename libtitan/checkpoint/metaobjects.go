package checkpoint

import (
	"errors"
	"fmt"

	"titan/libtitan/pickle"
)

func (m *metaMachine) stackGlobal() error {
	name, err := m.pop()
	if err != nil {
		return err
	}
	module, err := m.pop()
	if err != nil {
		return err
	}
	if module.kind != metaStr || name.kind != metaStr {
		return errors.New("the module or the name is no string")
	}
	return m.global(m.strs[module.n], m.strs[name.n])
}

func (m *metaMachine) global(module, name string) error {
	v, ok := metaGlobal(module, name)
	if !ok {
		return &pickle.NameError{Module: module, Name: name}
	}
	return m.push(v)
}

// call takes a callable and its arguments off the stack.
func (m *metaMachine) call(kind metaKind, name string) (callable, args metaValue, err error) {
	if args, err = m.pop(); err != nil {
		return callable, args, err
	}
	if args.kind != metaTuple {
		return callable, args, errors.New("the arguments are no tuple")
	}
	if callable, err = m.pop(); err == nil && callable.kind != kind {
		err = fmt.Errorf("the value is no %s", name)
	}
	return callable, args, err
}

func (m *metaMachine) newObject() error {
	class, args, err := m.call(metaClass, "class")
	if err != nil {
		return err
	}
	if args.size > 0 {
		return fmt.Errorf("%d arguments where none is known", args.size)
	}
	return m.push(metaValue{metaObject, int32(class.n), m.add(metaClassID(class.n))})
}

func (m *metaMachine) reduce() error {
	f, args, err := m.call(metaFunc, "function")
	if err != nil {
		return err
	}
	if metaFuncID(f.n) != torchSizeFunc {
		return m.push(metaValue{kind: metaIgnored})
	}
	return m.torchSize(args)
}

// torchSize makes a torch.Size of ((2, 3),). Both tuples give their places back, if nothing else can reach them.
func (m *metaMachine) torchSize(args metaValue) error {
	if args.size != 1 || m.tuples[args.n].kind != metaTuple {
		return errors.New("torch.Size takes one tuple")
	}
	t := m.tuples[args.n]
	if t.size > maxDims {
		return fmt.Errorf("torch.Size of %d dims where a tensor has %d at most", t.size, maxDims)
	}
	v := metaValue{metaSize, t.size, int64(len(m.ints))}
	for _, x := range m.elements(t) {
		if x.kind != metaInt {
			return errors.New("torch.Size of something else than integers")
		}
		m.ints = append(m.ints, x.n)
	}
	if args.n+1 == int64(len(m.tuples)) && t.n+int64(t.size) == args.n && t.n >= int64(m.kept) {
		m.held -= len(m.tuples) - int(t.n)
		m.tuples = m.tuples[:t.n]
	}
	return m.push(v)
}

// build gives the object on the stack its state. A dict that nothing else can reach is used again.
func (m *metaMachine) build() error {
	state, err := m.pop()
	if err != nil {
		return err
	}
	object, err := m.top()
	if err != nil {
		return err
	}
	if object.kind != metaObject {
		return errors.New("the value takes no state")
	}
	if err := m.setState(metaClassID(object.size), int(object.n), state); err != nil {
		return err
	}
	if state.kind != metaDict || m.dicts[state.n].kept {
		return nil
	}
	if d := &m.dicts[state.n]; metaClassID(object.size) != metadataClass {
		m.held -= len(d.items)
		d.items = d.items[:0]
		m.spare = append(m.spare, state.n)
	}
	return nil
}
