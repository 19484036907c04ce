package mpi

import (
	"bytes"
	"context"
	"encoding/binary"
	"sync"
	"unsafe"

	"titan/libtitan/comm"
	"titan/libtitan/exit"
)

// inline is up to how many bytes a body travels in its head, below what Open MPI sends without asking (4 KiB).
const inline = 2048

// Kinds of heads: the first byte. A message's head is kind, body's first tag number (0: inline), body's size, channel, head,
// inline body; a failure's is kind, exit code, text. Numbers are uvarints, strings have their length before them.
const (
	isMessage = 'm'
	isFailure = 'f'
	isEnd     = 'e'
)

// wire is a rank's end: posts and receptions become work of the pump.
type wire struct {
	*pump
	me, size int
	sent     []uint64 // by peer: parts of bodies sent; the pump's
	once     sync.Once
	pool     sync.Pool // of *[]byte for views
}

func (w *wire) Rank() int          { return w.me }
func (w *wire) Inbox() *comm.Inbox { return w.inbox }

func (w *wire) Post(to int, channel, head string, body []byte) comm.Sent {
	f := &flight{done: make(chan struct{})}
	s := &comm.Handed{Inbox: w.inbox, To: to, Done: f.done}
	if len(body) <= inline {
		h := header(0, len(body), channel, head)
		w.post(to, append(h, body...))
		close(f.done)
		return s
	}
	w.do(func() error {
		first := w.sent[to]
		w.sent[to] += uint64(parts(len(body)))
		if err := w.postNow(to, header(first+1, len(body), channel, head)); err != nil {
			return err
		}
		return w.start("MPI_Isend", w.lib.isend, f, body, to, bodyTagOf(first))
	})
	return s
}

// post sends a head.
func (w *wire) post(to int, head []byte) {
	w.do(func() error { return w.postNow(to, head) })
}

func (w *wire) postNow(to int, head []byte) error {
	return w.start("MPI_Isend", w.lib.isend, &flight{done: make(chan struct{})}, head, to, func(int) int { return headTag })
}

// postAll sends a head to all other ranks.
func (w *wire) postAll(head []byte) {
	for r := range w.size {
		if r != w.me {
			w.post(r, head)
		}
	}
}

// Fail ends the job; the others learn of the first failure only.
func (w *wire) Fail(err error) {
	w.inbox.Fail(err)
	w.once.Do(func() {
		h := binary.AppendUvarint([]byte{isFailure}, uint64(exit.Code(err)))
		w.postAll(appendString(h, err.Error()))
	})
}

func header(first uint64, size int, channel, head string) []byte {
	h := binary.AppendUvarint([]byte{isMessage}, first)
	h = binary.AppendUvarint(h, uint64(size))
	return appendString(appendString(h, channel), head)
}

func appendString(h []byte, s string) []byte {
	return append(binary.AppendUvarint(h, uint64(len(s))), s...)
}

// bodyTagOf is the tag of each part of a body.
func bodyTagOf(first uint64) func(part int) int {
	return func(part int) int { return bodyTag + int((first+uint64(part))%bodyTags) }
}

// take puts a head that came into the inbox.
func (w *wire) take(from int, head []byte) {
	if head[0] == isEnd {
		w.inbox.Leave(from)
		return
	}
	r := bytes.NewBuffer(head[1:])
	number := func() uint64 { n, _ := binary.ReadUvarint(r); return n } // our own program wrote it
	text := func() string { return string(r.Next(int(number()))) }
	if head[0] == isFailure {
		w.inbox.Fail(exit.Told(exit.Kind(number()).Errorf("%s", text())))
		return
	}
	m := &message{wire: w, from: from, first: number(), size: int(number())}
	channel := text()
	m.head = text()
	if m.first == 0 {
		m.body = bytes.Clone(r.Bytes()) // alone it is aligned for any dtype
	}
	w.inbox.Put(from, channel, m)
}

// message is a head; the body is still the sender's, unless it was inline.
type message struct {
	*wire
	from  int
	first uint64 // 1 + the number of the body's first part
	size  int
	head  string
	body  []byte // inline, or the view
	room  *[]byte
}

func (m *message) Head() string { return m.head }
func (m *message) Size() int    { return m.size }

func (m *message) Read(ctx context.Context, dst []byte) error {
	if m.first == 0 {
		copy(dst, m.body)
		return nil
	}
	f := &flight{done: make(chan struct{})}
	m.do(func() error { return m.start("MPI_Irecv", m.lib.irecv, f, dst, m.from, bodyTagOf(m.first-1)) })
	return m.inbox.Await(ctx, f.done, nil)
}

func (m *message) View(ctx context.Context) ([]byte, error) {
	if m.first == 0 || m.body != nil {
		return m.body, nil
	}
	room, _ := m.pool.Get().(*[]byte)
	if room == nil || cap(*room) < m.size {
		words := make([]uint64, (m.size+7)/8)
		b := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 8*len(words))
		room = &b
	}
	b := (*room)[:m.size]
	if err := m.Read(ctx, b); err != nil {
		return nil, err // MPI may still write to the room
	}
	m.body, m.room = b, room
	return b, nil
}

// Close gives the view's room back. A body that nobody wanted stays with the sender: the job has failed then.
func (m *message) Close() {
	if m.room != nil {
		m.pool.Put(m.room)
		m.body, m.room = nil, nil
	}
}
