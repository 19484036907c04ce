package nccl

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"

	"titan/libtitan/comm"
	"titan/libtitan/exit"
)

// communicator is NCCL's of a group; this rank is member me.
type communicator struct {
	comm.Group
	handle uintptr
	me     int
}

func keyOf(g comm.Group) string { return fmt.Sprintf("%s %v", g.Name, g.Ranks) }

// Open makes the communicators of groups that this rank is a member of. All ranks call it together, each with its own
// groups; a group must be among those of all its members. Collectives of one group follow each other, whatever the
// streams; those of two run side by side.
func (r *Rank) Open(ctx context.Context, groups []comm.Group) error {
	var missing []comm.Group
	for _, g := range groups {
		if r.find(g) == nil {
			missing = append(missing, g)
		}
	}
	all, err := exchange(ctx, r, "groups", missing)
	if err != nil {
		return err
	}
	if err := agree(all); err != nil {
		return err
	}
	for _, round := range roundsOf(slices.Concat(all...)) {
		if err := r.openRound(round); err != nil {
			return err
		}
	}
	return nil
}

func (r *Rank) find(g comm.Group) *communicator {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.groups[keyOf(g)]
}

// openRound makes the communicators of groups that share no rank.
func (r *Rank) openRound(round []comm.Group) error {
	color, key, mine := r.colorIn(round)
	handle, err := r.split(color, key, newConfig())
	if err != nil || mine < 0 {
		return err
	}
	c := &communicator{round[mine], handle, key}
	r.mu.Lock()
	r.groups[keyOf(c.Group)] = c
	r.mu.Unlock()
	return r.connect(c)
}

// colorIn is what this rank gives split to be in its group of a round, which is mine; -1: it is in none.
func (r *Rank) colorIn(round []comm.Group) (color, key, mine int) {
	for i, g := range round {
		if at := slices.Index(g.Ranks, r.Rank()); at >= 0 {
			return i, at, i
		}
	}
	const noColor = -1
	return noColor, 0, -1
}

// split cuts the world's communicator; all its ranks do so together.
func (r *Rank) split(color, key int, how *config) (uintptr, error) {
	r.mu.Lock()
	world := r.comms[0]
	r.mu.Unlock()
	return r.join("ncclCommSplit", func(c *uintptr) int32 {
		return call(r.lib.split, world, uintptr(color), uintptr(key), uintptr(ref(c)), uintptr(ref(how)))
	})
}

// connect has the members of a pair each send the other a byte: NCCL makes a connection when it is first used, and waits
// for the peer, which might wait for something else then.
func (r *Rank) connect(c *communicator) error {
	if len(c.Ranks) != 2 {
		return nil
	}
	p, err := r.dev.Alloc(2)
	if err != nil {
		return err
	}
	s, err := r.dev.NewStream(false)
	if err != nil {
		return err
	}
	peer, comm := uintptr(1-c.me), c.handle
	err = r.patiently("connect "+c.String(), func() error {
		err := r.together([]ncclCall{
			{"ncclSend", r.lib.send, []uintptr{uintptr(p), 1, bytesType, peer, comm, s.Handle()}},
			{"ncclRecv", r.lib.recv, []uintptr{uintptr(p + 1), 1, bytesType, peer, comm, s.Handle()}},
		})
		return cmp.Or(err, s.Sync())
	})
	return cmp.Or(err, s.Close(), r.dev.Free(p))
}

// exchange gives what each rank has to say, by rank.
func exchange[T any](ctx context.Context, r *Rank, what string, mine T) ([]T, error) {
	said, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	world := comm.Group{Name: what, Ranks: comm.World(r.Size()).Ranks}
	lengths, texts := make([][]byte, r.Size()), make([][]byte, r.Size())
	for i := range lengths {
		lengths[i] = make([]byte, 8)
	}
	length := binary.LittleEndian.AppendUint64(nil, uint64(len(said)))
	if err := r.AllGather(ctx, world, "lengths of "+what, comm.Gathered{Mine: length, Out: lengths}); err != nil {
		return nil, err
	}
	for i, n := range lengths {
		texts[i] = make([]byte, binary.LittleEndian.Uint64(n))
	}
	if err := r.AllGather(ctx, world, what, comm.Gathered{Mine: said, Out: texts}); err != nil {
		return nil, err
	}
	all := make([]T, r.Size())
	for i, text := range texts {
		if err := json.Unmarshal(text, &all[i]); err != nil {
			return nil, fmt.Errorf("%s of rank %d: %w", what, i, err)
		}
	}
	return all, nil
}

// agree checks that the members of each group all ask for it: who does not would be waited for.
func agree(all [][]comm.Group) error {
	for r, groups := range all {
		for _, g := range groups {
			for _, member := range g.Ranks {
				known := member >= 0 && member < len(all) && slices.ContainsFunc(all[member], func(o comm.Group) bool { return keyOf(o) == keyOf(g) })
				if !known {
					return exit.Bug.Errorf("rank %d moves tensors in %v, rank %d does not", r, g, member)
				}
			}
		}
	}
	return nil
}

// roundsOf orders groups, each once, in rounds whose groups share no rank: one split makes those of a round.
func roundsOf(groups []comm.Group) (rounds [][]comm.Group) {
	groups = slices.Clone(groups)
	slices.SortFunc(groups, func(a, b comm.Group) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), slices.Compare(a.Ranks, b.Ranks))
	})
	groups = slices.CompactFunc(groups, func(a, b comm.Group) bool { return keyOf(a) == keyOf(b) })
	for _, g := range groups {
		at := slices.IndexFunc(rounds, func(round []comm.Group) bool {
			return !slices.ContainsFunc(round, func(o comm.Group) bool { return share(o.Ranks, g.Ranks) })
		})
		if at < 0 {
			rounds, at = append(rounds, nil), len(rounds)
		}
		rounds[at] = append(rounds[at], g)
	}
	return rounds
}

// share reports whether a rank is in both lists.
func share(a, b []int) bool {
	return slices.ContainsFunc(a, func(r int) bool { return slices.Contains(b, r) })
}
