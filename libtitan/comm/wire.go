package comm

import (
	"context"
	"log/slog"
	"time"
)

// Wire is what an engine gives: messages from rank to rank, in order on each channel. A channel is any string.
type Wire interface {
	Rank() int
	// Post sends head and body to rank to, not this one, and returns at once. body must not change until the Sent says so.
	Post(to int, channel, head string, body []byte) Sent
	// Inbox holds what came for this rank.
	Inbox() *Inbox
	// Fail ends the job: it makes the inboxes of all ranks fail with err.
	Fail(err error)
}

// Sent is the sender's side of a message.
type Sent interface {
	// Wait returns when the body was taken.
	Wait(ctx context.Context) error
	// Drop returns when nobody reads the body any more; the job has failed.
	Drop()
}

// Handed is a Sent of an engine that tells by a channel that the body was taken.
type Handed struct {
	Inbox *Inbox        // the sender's
	To    int           // the rank that the body is for
	Done  chan struct{} // closed when it has taken it
}

// Wait returns when Done is closed, or when it cannot be any more.
func (h *Handed) Wait(ctx context.Context) error {
	return h.Inbox.Await(ctx, h.Done, h.Inbox.Left(h.To))
}

// Drop leaves the body: the job has failed, and what a receiver still gets of it is not looked at.
func (h *Handed) Drop() {}

// Message is the receiver's side of a message. Read, or View and Close, is called once.
type Message interface {
	Head() string
	// Size is the body's number of bytes.
	Size() int
	// Read fills dst, Size long, with the body.
	Read(ctx context.Context, dst []byte) error
	// View is the body, which stays until Close, where an engine can spare the copy.
	View(ctx context.Context) ([]byte, error)
	Close()
}

// Options are how a job waits.
type Options struct {
	Timeout time.Duration // of one call, until SetTimeout says otherwise; 0 is DefaultTimeout
	Log     *slog.Logger  // where the last collectives go when the job is lost, at debug level; nil is slog.Default
}

// DefaultTimeout is torchtitan's for the first step (comm.init_timeout_seconds).
const DefaultTimeout = 300 * time.Second
