package nccl

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"titan/libtitan/exit"
)

// peer is the connection to another rank.
type peer struct {
	conn net.Conn
	mu   sync.Mutex
}

// maxFrame is the most bytes of one frame: an inline body and what names it.
const maxFrame = 1 << 20

// send writes a frame: its length in four bytes, then the parts.
func (p *peer) send(parts ...[]byte) error {
	n := 0
	for _, b := range parts {
		n += len(b)
	}
	frame := append(net.Buffers{binary.LittleEndian.AppendUint32(nil, uint32(n))}, parts...)
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := frame.WriteTo(p.conn)
	return err
}

// receive reads a frame.
func (p *peer) receive() ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(p.conn, size[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(size[:])
	if n == 0 || n > maxFrame {
		return nil, fmt.Errorf("a frame of %d bytes", n)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(p.conn, b)
	return b, err
}

// meeting is the making of the connections of one rank.
type meeting struct {
	place
	ctx      context.Context
	timeout  time.Duration
	listener net.Listener
	mu       sync.Mutex
	peers    []*peer
	at       []string // by rank: where it listens
	come     chan error
}

// meet connects all ranks with each other: each calls those below it, and is called by those above. Where they meet at
// an address, rank 0 tells where the others listen.
func meet(ctx context.Context, p place, timeout time.Duration) ([]*peer, error) {
	ctx, stop := context.WithTimeout(ctx, timeout)
	defer stop()
	m := &meeting{place: p, ctx: ctx, timeout: timeout, peers: make([]*peer, p.Size), at: make([]string, p.Size), come: make(chan error, p.Size)}
	if p.Size == 1 {
		return m.peers, nil
	}
	err := m.connect()
	if m.listener != nil {
		m.listener.Close()
	}
	if err != nil {
		for _, q := range m.peers {
			if q != nil {
				q.conn.Close()
			}
		}
		if called := m.calledOff(); called != nil {
			return nil, fmt.Errorf("%v: %w", p.Launch, called)
		}
		return nil, exit.Lost.Errorf("%v: %w", p.Launch, err)
	}
	return m.peers, nil
}

func (m *meeting) connect() error {
	network := "tcp"
	switch {
	case m.folder != "":
		network = "unix"
		for r := range m.at {
			m.at[r] = m.socket(r)
		}
	case m.Rank == 0:
		_, port, err := net.SplitHostPort(m.address)
		if err != nil {
			return err
		}
		m.at[0] = ":" + port
	default:
		m.at[0] = m.address
		if err := m.callRoot(); err != nil {
			return err
		}
	}
	if m.listener == nil {
		if err := m.listen(network, m.at[m.Rank]); err != nil {
			return err
		}
	}
	go m.accept()
	for r := range m.Rank {
		if m.peers[r] != nil {
			continue
		}
		q, err := m.call(network, r)
		if err != nil {
			return err
		}
		m.put(r, q)
	}
	if err := m.wait(m.Size - 1 - m.Rank); err != nil {
		return err
	}
	if m.Rank == 0 && m.folder == "" {
		return m.tellAll()
	}
	return nil
}

func (m *meeting) listen(network, address string) (err error) {
	if m.listener, err = net.Listen(network, address); err != nil && network == "tcp" {
		err = fmt.Errorf("%w: set another MASTER_PORT for all ranks", err)
	}
	return err
}

// callRoot calls rank 0, opens a socket at the address that reaches it, and learns where the others listen.
func (m *meeting) callRoot() error {
	conn, err := m.dial("tcp", 0)
	if err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(conn.LocalAddr().String())
	if err == nil {
		err = m.listen("tcp", net.JoinHostPort(host, "0"))
	}
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	q := &peer{conn: conn}
	m.put(0, q)
	if err := q.send(m.hello(m.Rank, m.listener.Addr().String())); err != nil {
		return m.late(err, 0)
	}
	defer m.bound(conn)()
	list, err := q.receive()
	if err != nil {
		return m.late(err, 0)
	}
	if at := strings.Split(string(list), "\n"); len(at) == m.Size {
		copy(m.at[1:], at[1:])
		return nil
	}
	return fmt.Errorf("%s: it does not speak as rank 0 does", m.address)
}

// tellAll tells all ranks, which have called, where the others listen.
func (m *meeting) tellAll() error {
	list := []byte(strings.Join(m.at, "\n"))
	for r, q := range m.peers {
		if q == nil {
			continue
		}
		if err := q.send(list); err != nil {
			return m.late(err, r)
		}
	}
	return nil
}

// bound makes reads of conn end with the meeting, until it is called off.
func (m *meeting) bound(conn net.Conn) (off func()) {
	fired := make(chan struct{})
	stop := context.AfterFunc(m.ctx, func() { conn.SetDeadline(time.Unix(1, 0)); close(fired) })
	return func() {
		if !stop() {
			<-fired
		}
		conn.SetDeadline(time.Time{})
	}
}

func (m *meeting) call(network string, rank int) (*peer, error) {
	conn, err := m.dial(network, rank)
	if err != nil {
		return nil, err
	}
	q := &peer{conn: conn}
	if err := q.send(m.hello(m.Rank, "")); err != nil {
		return nil, m.late(err, rank)
	}
	return q, nil
}

// dial tries until the rank listens.
func (m *meeting) dial(network string, rank int) (net.Conn, error) {
	var d net.Dialer
	for {
		conn, err := d.DialContext(m.ctx, network, m.at[rank])
		if err == nil {
			return conn, nil
		}
		select {
		case <-m.ctx.Done():
			return nil, m.late(err, rank)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// hello is what a rank says first: the job, how many ranks that has, which it is, and where it listens.
func (m *meeting) hello(rank int, at string) []byte {
	return fmt.Appendf(nil, "titan\n%s\n%d\n%d\n%s", m.job, m.Size, rank, at)
}

// accept takes the calls of the ranks above, and of strangers, who are sent away.
func (m *meeting) accept() {
	for {
		conn, err := m.listener.Accept()
		if err != nil {
			return // closed
		}
		go func() {
			if err := m.greet(conn); err != nil {
				conn.Close()
			}
		}()
	}
}

func (m *meeting) greet(conn net.Conn) error {
	q := &peer{conn: conn}
	off := m.bound(conn)
	b, err := q.receive()
	off()
	if err != nil {
		return err
	}
	for r := m.Rank + 1; r < m.Size; r++ {
		if at, ok := bytes.CutPrefix(b, m.hello(r, "")); ok {
			return m.welcome(r, q, string(at))
		}
	}
	return errors.New("a stranger")
}

func (m *meeting) welcome(r int, q *peer, at string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.peers[r] != nil {
		return fmt.Errorf("rank %d came twice", r)
	}
	m.peers[r] = q
	if at != "" {
		m.at[r] = at
	}
	m.come <- nil
	return nil
}

func (m *meeting) put(r int, q *peer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.peers[r] = q
}

// wait waits until n ranks have called.
func (m *meeting) wait(n int) error {
	for range n {
		select {
		case <-m.come:
		case <-m.ctx.Done():
			return m.late(nil, m.missing()...)
		}
	}
	return nil
}

func (m *meeting) missing() (ranks []int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for r := m.Rank + 1; r < m.Size; r++ {
		if m.peers[r] == nil {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// calledOff is why the meeting ends before its time.
func (m *meeting) calledOff() error {
	if cause := context.Cause(m.ctx); !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return nil
}

// late is why ranks have not met.
func (m *meeting) late(err error, ranks ...int) error {
	where := m.folder
	if where == "" {
		where = m.address
	}
	slices.Sort(ranks)
	if m.ctx.Err() == nil {
		return fmt.Errorf("meeting ranks %v at %s: %w", ranks, where, err)
	}
	return fmt.Errorf("ranks %v have not come to %s after %v", ranks, where, m.timeout)
}
