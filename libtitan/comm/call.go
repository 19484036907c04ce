package comm

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"titan/libtitan/dtype"
	"titan/libtitan/exit"
)

// call is one collective of one rank. Its members meet once or twice a tensor: each posts a message to each other one,
// takes theirs, and sees from the heads that all are in the same call.
type call struct {
	*rank
	ctx           context.Context
	stop          context.CancelFunc
	timeout       time.Duration
	ranks         []int
	at            int // this rank's place in ranks
	channel, head string
	no            int // of the group's collectives
	entry         *entry
	in            []Message // by member, nil for this one
	out           []Sent
	bad           error // why it cannot begin
}

// begin opens a collective. detail is what members must agree on besides its name; bytes is what this rank gives.
func (r *rank) begin(ctx context.Context, g Group, op, what, detail string, bytes int) *call {
	c := &call{rank: r, ranks: g.Ranks, at: slices.Index(g.Ranks, r.me), channel: g.String()}
	c.ctx, c.stop, c.timeout = r.within(ctx)
	c.head = strings.TrimRight(op+" "+what+" "+detail, " ")
	r.mu.Lock()
	r.count[c.channel]++
	c.no = r.count[c.channel]
	r.mu.Unlock()
	c.entry = &entry{op: op, what: what, place: fmt.Sprintf("no. %d in %s", c.no, c.channel), bytes: bytes, state: "waits"}
	r.ring.add(c.entry)
	if c.at < 0 {
		c.bad = c.bug("this rank is no member")
	}
	for i, peer := range g.Ranks {
		if r.has(peer) != nil || slices.Contains(g.Ranks[:i], peer) {
			c.bad = c.bug("rank %d comes twice or is none of %d", peer, r.Size())
		}
	}
	return c
}

// errorf is an error that says where.
func (c *call) errorf(k exit.Kind, format string, args ...any) error {
	where := strings.TrimRight(c.entry.op+" "+c.entry.what, " ")
	return k.Errorf("rank %d: %s (%s): %s", c.me, where, c.entry.place, fmt.Sprintf(format, args...))
}

func (c *call) bug(format string, args ...any) error { return c.errorf(exit.Bug, format, args...) }

// others calls f for the other members, the next one first: so not all turn to the first member at once.
func (c *call) others(f func(i int) error) error {
	for k := 1; k < len(c.ranks); k++ {
		if err := f((c.at + k) % len(c.ranks)); err != nil {
			return err
		}
	}
	return nil
}

// meet posts give(i) to each other member i and takes want(i) bytes of each.
func (c *call) meet(give func(i int) []byte, want func(i int) int) error {
	if err := c.post(give); err != nil {
		return err
	}
	return c.take(want)
}

// post hands give(i) to each other member i.
func (c *call) post(give func(i int) []byte) error {
	if c.bad != nil {
		return c.bad
	}
	if err := c.wire.Inbox().Err(); err != nil {
		return err
	}
	return c.others(func(i int) error {
		c.out = append(c.out, c.wire.Post(c.ranks[i], c.channel, c.head, give(i)))
		return nil
	})
}

// take takes want(i) bytes, the next that each other member i posted.
func (c *call) take(want func(i int) int) error {
	if c.in == nil {
		c.in = make([]Message, len(c.ranks))
	}
	var late []int
	err := c.others(func(i int) (err error) {
		c.in[i], err = c.wire.Inbox().Take(c.ctx, c.ranks[i], c.channel)
		if err == errLate {
			late = append(late, c.ranks[i])
			return nil
		}
		return c.explain(err, i)
	})
	if err != nil {
		return err
	}
	if late != nil {
		slices.Sort(late)
		return c.errorf(exit.Lost, "%s not come after %v", have(late), c.timeout)
	}
	return c.others(func(i int) error {
		m := c.in[i]
		if m.Head() != c.head {
			return c.bug("rank %d is in another call: %q there, %q here", c.ranks[i], m.Head(), c.head)
		}
		if m.Size() != want(i) {
			return c.bug("rank %d gives %d bytes, %d were expected", c.ranks[i], m.Size(), want(i))
		}
		return nil
	})
}

func have(ranks []int) string {
	if len(ranks) == 1 {
		return "rank " + strconv.Itoa(ranks[0]) + " has"
	}
	return fmt.Sprintf("ranks %v have", ranks)
}

// explain says which member an error of waiting was for.
func (c *call) explain(err error, i int) error {
	switch err {
	case errLate:
		return c.errorf(exit.Lost, "rank %d has come, but its data has not moved after %v", c.ranks[i], c.timeout)
	case errLeft:
		return c.errorf(exit.Lost, "rank %d has ended without it", c.ranks[i])
	}
	return err
}

// read fills out(i) with what the other members gave.
func (c *call) read(out func(i int) []byte) error {
	return c.others(func(i int) error {
		m := c.in[i]
		c.in[i] = nil
		return c.explain(m.Read(c.ctx, out(i)), i)
	})
}

// views is what the members gave, and own for this one. It stays until the call's next meeting or end.
func (c *call) views(own []byte) ([][]byte, error) {
	v := make([][]byte, len(c.ranks))
	v[c.at] = own
	return v, c.others(func(i int) (err error) {
		v[i], err = c.in[i].View(c.ctx)
		return c.explain(err, i)
	})
}

// close gives the views back.
func (c *call) close() {
	for i, m := range c.in {
		if m != nil {
			m.Close()
			c.in[i] = nil
		}
	}
}

// given waits until the others have what this rank gave: then its buffers are its own again.
func (c *call) given() error {
	for k, s := range c.out {
		if err := s.Wait(c.ctx); err != nil {
			return c.explain(err, (c.at+1+k%(len(c.ranks)-1))%len(c.ranks))
		}
	}
	return nil
}

// settle ends a meeting: the members' buffers are their own again.
func (c *call) settle() error {
	c.close()
	err := c.given()
	if err == nil {
		c.out = c.out[:0]
	}
	return err
}

// end closes the call; an error ends the job.
func (c *call) end(err error) error {
	defer c.stop()
	if err == nil {
		err = c.settle()
	}
	if err == nil {
		c.ring.set(c.entry, "done")
		return nil
	}
	c.ring.set(c.entry, err.Error())
	err = c.fail(err)
	c.close()
	for _, s := range c.out {
		s.Drop()
	}
	return err
}

// fit checks that the lists have a buffer a member, where the call can begin.
func (c *call) fit(lists ...[][]byte) bool {
	for _, l := range lists {
		if c.bad == nil && len(l) != len(c.ranks) {
			c.bad = c.bug("%d buffers for %d members", len(l), len(c.ranks))
		}
	}
	return c.bad == nil
}

// reducer finds the reducer of buffers of dt.
func (c *call) reducer(dt dtype.DType, op Op, buffers ...[]byte) reducer {
	f, known := reducers[dt]
	switch {
	case c.bad != nil:
	case !known:
		c.bad = c.bug("no reduction of %v (float32, float64, bfloat16, int64)", dt)
	case op != Sum && op != Max:
		c.bad = c.bug("no reduction %v (sum, max)", op)
	default:
		for _, b := range buffers {
			if len(b)%dt.Size() != 0 {
				c.bad = c.bug("%d bytes are no whole number of %v", len(b), dt)
			}
		}
	}
	return f
}
