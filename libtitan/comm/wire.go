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
	Log     *slog.Logger  // where the last collectives go when the job is lost; nil is slog.Default
}

// DefaultTimeout is torchtitan's for the first step (comm.init_timeout_seconds).
const DefaultTimeout = 300 * time.Second
