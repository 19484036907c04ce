package nccl

import (
	"bytes"
	"context"
	"encoding/binary"
	"sync"
	"unsafe"

	"titan/libtitan/comm"
	"titan/libtitan/exit"
)

// inline is up to how many bytes a body travels in its head. A longer one goes from GPU to GPU.
const inline = 16 << 10

// Kinds of frames: the first byte. A message's frame is kind, number of its body (0: inline), body's size, channel, head,
// inline body; a failure's is kind, exit code, text; those of turns are kind, sender, receiver, number of the body.
// Numbers are uvarints, strings have their length before them.
const (
	isMessage = 'm'
	isFailure = 'f'
	isEnd     = 'e'
	isAsk     = 'a' // for a turn: the receiver of a body to rank 0
	isGo      = 'g' // a body's turn has come: rank 0 to both its ends
	isDone    = 'd' // the body is there: its receiver to rank 0
)

// wire is a rank's end. Heads go through sockets: NCCL brings nothing that nobody waits for yet, and no error.
type wire struct {
	me     int
	inbox  *comm.Inbox
	peers  []*peer // nil for this rank
	inline int
	once   sync.Once
	ended  sync.Once
	turns  turns // rank 0's
	bodies bodies
}

func newWire(me int, peers []*peer, inline int) *wire {
	w := &wire{me: me, inbox: comm.NewInbox(len(peers)), peers: peers, inline: inline}
	w.turns.wire, w.bodies.wire = w, w
	w.bodies.given, w.bodies.wanted = map[uint64]body{}, map[turn]body{}
	w.bodies.moves = make(chan func() error, 1<<10)
	for r, p := range peers {
		if p != nil {
			go w.read(r, p)
		}
	}
	return w
}

func (w *wire) Rank() int          { return w.me }
func (w *wire) Inbox() *comm.Inbox { return w.inbox }

func (w *wire) Post(to int, channel, head string, body []byte) comm.Sent {
	s := &comm.Handed{Inbox: w.inbox, To: to, Done: make(chan struct{})}
	number := uint64(0)
	if len(body) > w.inline {
		number = w.bodies.offer(body, s.Done)
	}
	h := binary.AppendUvarint([]byte{isMessage}, number)
	h = binary.AppendUvarint(h, uint64(len(body)))
	h = appendString(appendString(h, channel), head)
	if number == 0 {
		w.send(to, h, body)
		close(s.Done)
	} else {
		w.send(to, h)
	}
	return s
}

// send sends a frame. A peer that does not take it has ended, and what it said last was read or will be.
func (w *wire) send(to int, parts ...[]byte) {
	_ = w.peers[to].send(parts...)
}

func appendString(h []byte, s string) []byte {
	return append(binary.AppendUvarint(h, uint64(len(s))), s...)
}

// Fail ends the job; the others learn of the first failure only.
func (w *wire) Fail(err error) {
	w.inbox.Fail(err)
	w.once.Do(func() {
		h := binary.AppendUvarint([]byte{isFailure}, uint64(exit.Code(err)))
		w.toAll(appendString(h, err.Error()))
	})
}

// leave tells the others that nothing more comes.
func (w *wire) leave() { w.ended.Do(func() { w.toAll([]byte{isEnd}) }) }

func (w *wire) toAll(frame []byte) {
	for r, p := range w.peers {
		if p != nil {
			w.send(r, frame)
		}
	}
}

// read takes a peer's frames until it has ended. One that goes without a word ends the job.
func (w *wire) read(from int, p *peer) {
	for {
		b, err := p.receive()
		if err != nil {
			w.Fail(exit.Lost.Errorf("rank %d: rank %d is gone: its process ended without a word", w.me, from))
			return
		}
		if b[0] == isEnd {
			w.inbox.Leave(from)
			return
		}
		w.take(from, b)
	}
}

// take does what a frame asks for.
func (w *wire) take(from int, frame []byte) {
	r := bytes.NewBuffer(frame[1:])
	number := func() uint64 { n, _ := binary.ReadUvarint(r); return n } // our own program wrote it
	text := func() string { return string(r.Next(int(number()))) }
	switch frame[0] {
	case isFailure:
		w.inbox.Fail(exit.Told(exit.Kind(number()).Errorf("%s", text())))
	case isMessage:
		m := &message{wire: w, from: from, number: number(), size: int(number())}
		channel := text()
		m.head = text()
		if m.number == 0 {
			m.body = aligned(r.Bytes())
		}
		w.inbox.Put(from, channel, m)
	default:
		w.turn(frame[0], turn{int(number()), int(number()), number()})
	}
}

// aligned is a copy that starts where any dtype may.
func aligned(b []byte) []byte {
	words := make([]uint64, (len(b)+7)/8)
	out := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), len(b))
	copy(out, b)
	return out
}

// message is a head; the body is still the sender's, unless it was inline.
type message struct {
	*wire
	from   int
	number uint64
	size   int
	head   string
	body   []byte // inline, or the view
}

func (m *message) Head() string { return m.head }
func (m *message) Size() int    { return m.size }
func (m *message) Close()       {}

func (m *message) Read(ctx context.Context, dst []byte) error {
	if m.number == 0 {
		copy(dst, m.body)
		return nil
	}
	return m.inbox.Await(ctx, m.bodies.ask(m.from, m.number, dst), nil)
}

func (m *message) View(ctx context.Context) ([]byte, error) {
	if m.number == 0 || m.body != nil {
		return m.body, nil
	}
	b := aligned(make([]byte, m.size))
	if err := m.Read(ctx, b); err != nil {
		return nil, err // it may still be written to
	}
	m.body = b
	return b, nil
}
