package nccl

import (
	"fmt"

	"titan/libtitan/device/cuda"
	"titan/libtitan/exit"
)

// stage is the room on the device through which a body goes, in bytes.
const stage = 32 << 20

// mover moves bodies between the hosts' memory by way of their GPUs.
type mover struct {
	*Rank
	comm   uintptr
	stream *cuda.Stream
	room   cuda.Ptr
}

// startBodies starts the goroutine that moves bodies, on a communicator of all ranks that is its alone.
func (r *Rank) startBodies(comm uintptr) error {
	s, err := r.dev.NewStream(true)
	if err != nil {
		return err
	}
	room, err := r.dev.Alloc(stage)
	if err != nil {
		return fmt.Errorf("room to move what is saved: %w", err)
	}
	m := &mover{r, comm, s, room}
	r.wire.bodies.move = m.move
	go func() {
		leave, err := r.dev.Enter()
		if err != nil {
			r.wire.Fail(err)
			return
		}
		defer leave()
		for {
			select {
			case move := <-r.wire.bodies.moves:
				if err := move(); err != nil {
					r.wire.Fail(err)
					return
				}
			case <-r.wire.inbox.Failed():
				return
			}
		}
	}()
	return nil
}

// move sends or receives a body, a stage at a time.
func (m *mover) move(t turn, b []byte) error {
	for len(b) > 0 {
		part := b[:min(len(b), stage)]
		b = b[len(part):]
		var err error
		if t.from == m.Rank.Rank() {
			if err = m.dev.Upload(m.room, part); err == nil {
				err = m.pass("ncclSend", m.lib.send, len(part), t.to)
			}
		} else if err = m.pass("ncclRecv", m.lib.recv, len(part), t.from); err == nil {
			err = m.dev.Download(part, m.room)
		}
		if err != nil {
			return exit.Lost.Errorf("rank %d: a body from rank %d to rank %d: %w", m.Rank.Rank(), t.from, t.to, err)
		}
	}
	return nil
}

// pass is one end of a part of a body.
func (m *mover) pass(name string, fn uintptr, bytes, peer int) error {
	err := m.together([]ncclCall{{name, fn, []uintptr{uintptr(m.room), uintptr(bytes), bytesType, uintptr(peer), m.comm, m.stream.Handle()}}})
	if err != nil {
		return err
	}
	return m.stream.Sync()
}
