package checkpoint

// Nine in ten instructions of a large .metadata spell torch.Sizes and the starts of objects. Both are matched here and
// done in one go; whatever looks otherwise goes instruction by instruction and gives the same.

// fast executes the run of instructions that follows a name v on the stack, if it is one of the two, and says where
// it ends; else it does nothing and gives pos back.
func (m *metaMachine) fast(v metaValue, pos int) (int, error) {
	switch {
	case v.kind == metaFunc && metaFuncID(v.n) == torchSizeFunc:
		return m.fastSize(pos)
	case v.kind == metaClass:
		return m.fastObject(metaClassID(v.n), pos)
	}
	return pos, nil
}

// metaRunMatcher matches instructions without executing any.
type metaRunMatcher struct {
	m     *metaMachine
	data  string
	pos   int
	ok    bool
	puts  int // slots that MEMOIZE takes
	slots [3]int
	n     int // slots of BINPUT and LONG_BINPUT
}

func (r *metaRunMatcher) op(op byte) {
	if r.ok = r.ok && r.data[r.pos] == op; r.ok {
		r.pos++
	}
}

// put passes over one MEMOIZE, BINPUT or LONG_BINPUT of a slot that is never read.
func (r *metaRunMatcher) put() {
	if !r.ok {
		return
	}
	switch r.data[r.pos] {
	case 0x94:
		r.ok = !r.m.memo.Reads(r.m.memo.Next() + r.puts)
		r.puts++
		r.pos++
	case 'q', 'r':
		_, a, end := r.m.program.Next(r.pos)
		r.ok = r.n < len(r.slots) && !r.m.memo.Reads(int(a.N))
		if r.ok {
			r.slots[r.n] = int(a.N)
			r.n++
			r.pos = end
		}
	}
}

// commit takes the slots. A pickle that mixes both ways of numbering them is none of Python's.
func (r *metaRunMatcher) commit() {
	for range r.puts {
		r.m.memo.Add(metaValue{})
	}
	for _, slot := range r.slots[:r.n] {
		r.m.memo.Put(slot, metaValue{})
	}
}

// fastSize does INT... TUPLE TUPLE1 REDUCE, where torch.Size is on the stack.
func (m *metaMachine) fastSize(pos int) (int, error) {
	at := len(m.ints)
	r := metaRunMatcher{m: m, data: m.data, pos: pos, ok: true}
	for n := 0; n <= 3; n++ {
		op, a, end := m.program.Next(r.pos)
		if op != 'K' && op != 'M' && op != 'J' {
			break
		}
		m.ints = append(m.ints, a.N)
		r.pos = end
	}
	switch n := len(m.ints) - at; n {
	case 0:
		r.op(')')
	case 4:
		r.ok = false
	default:
		r.op(0x84 + byte(n))
		r.put()
	}
	r.op(0x85)
	r.put()
	r.op('R')
	if !r.ok || r.puts > 0 && r.n > 0 {
		m.ints = m.ints[:at]
		return pos, nil
	}
	r.commit()
	m.stack[len(m.stack)-1] = metaValue{metaSize, int32(len(m.ints) - at), int64(at)}
	return r.pos, m.room()
}

// fastObject does EMPTY_TUPLE NEWOBJ EMPTY_DICT MARK, where a class is on the stack.
func (m *metaMachine) fastObject(class metaClassID, pos int) (int, error) {
	r := metaRunMatcher{m: m, data: m.data, pos: pos, ok: true}
	r.op(')')
	r.op(0x81)
	r.put()
	r.op('}')
	r.put()
	r.op('(')
	if !r.ok || r.puts > 0 && r.n > 0 || len(m.marks) == maxMetaMarks {
		return pos, nil
	}
	r.commit()
	m.stack[len(m.stack)-1] = metaValue{metaObject, int32(class), m.add(class)}
	if err := m.newDict(); err != nil {
		return pos, err
	}
	m.marks = append(m.marks, len(m.stack))
	return r.pos, nil
}
