package train

import (
	"context"
	"fmt"
)

// sendState hands rank 0, in another process, what this rank saves; recvState takes it there.
func (k *rank) sendState(ctx context.Context) error {
	return k.eachSaved(func(what string, x []float32) error { return k.comm.Send(ctx, 0, what, floatBytes(x)) })
}

func (k *rank) recvState(ctx context.Context, from int) (*rank, error) {
	peer := &rank{run: k.run, held: k.job.Held(from), state: newState()}
	for _, h := range peer.held {
		for _, list := range []map[string][]float32{peer.state.params, peer.state.m, peer.state.v} {
			list[h.Param.FQN] = make([]float32, h.NumElements())
		}
	}
	peer.saver.from = peer.state
	return peer, peer.eachSaved(func(what string, x []float32) error { return k.comm.Recv(ctx, from, what, floatBytes(x)) })
}

// eachSaved calls f for every tensor part that the rank saves, in an order that both sides share.
func (k *rank) eachSaved(f func(what string, x []float32) error) error {
	for _, h := range k.held {
		if !h.First {
			continue
		}
		for i, list := range []map[string][]float32{k.state.params, k.state.m, k.state.v} {
			if err := f(fmt.Sprintf("save %s %d", h.Param.FQN, i), list[h.Param.FQN]); err != nil {
				return err
			}
		}
	}
	return nil
}
