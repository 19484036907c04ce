package nccl

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"titan/libtitan/exit"
)

// Children are the ranks that this process started.
type Children struct {
	failed context.Context
	cancel context.CancelCauseFunc
	dir    string
	all    sync.WaitGroup
	list   []*child
}

// Start makes this process rank 0 of size ranks on this machine and starts the others: this program again, with the
// same arguments and in on its standard input. They end when this process does.
func Start(size int, in []byte) (*Children, error) {
	dir, err := os.MkdirTemp("", "titan-ranks-") // only this user may enter
	if err != nil {
		return nil, err
	}
	if err := become(0, size, dir, os.Setenv); err != nil {
		return nil, err
	}
	k := &Children{dir: dir}
	k.failed, k.cancel = context.WithCancelCause(context.Background())
	for r := 1; r < size; r++ {
		c := newChild(r, size, dir, in)
		k.list = append(k.list, c)
		k.all.Go(func() {
			if err := c.run(); err != nil {
				k.cancel(err)
			}
		})
	}
	return k, nil
}

// With is ctx, but it ends when a child fails too, with the reason as its cause.
func (k *Children) With(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	off := context.AfterFunc(k.failed, func() { cancel(context.Cause(k.failed)) })
	return ctx, func() { off(); cancel(nil) }
}

// Wait waits until all children have ended; those that do not, after a while, are ended.
func (k *Children) Wait() error {
	patience := 10 * linger
	if k.failed.Err() != nil {
		patience = linger
	}
	timer := time.AfterFunc(patience, func() {
		for _, c := range k.list {
			c.kill()
		}
	})
	k.all.Wait()
	timer.Stop()
	k.cancel(nil)
	return os.RemoveAll(k.dir)
}

// become sets the variables that torchrun would, and the folder.
func become(rank, size int, dir string, set func(name, value string) error) error {
	for _, v := range [][2]string{
		{"RANK", strconv.Itoa(rank)}, {"LOCAL_RANK", strconv.Itoa(rank)}, {"WORLD_SIZE", strconv.Itoa(size)}, {"LOCAL_WORLD_SIZE", strconv.Itoa(size)},
		{"MASTER_ADDR", "127.0.0.1"}, {FolderVar, dir},
	} {
		if err := set(v[0], v[1]); err != nil {
			return err
		}
	}
	return nil
}

// child is a rank in a process that this one started.
type child struct {
	rank int
	cmd  *exec.Cmd
	said bytes.Buffer // on stderr: errors alone, for it is not the rank that speaks
	mu   sync.Mutex
}

func newChild(rank, size int, dir string, in []byte) *child {
	c := &child{rank: rank, cmd: exec.Command("/proc/self/exe", os.Args[1:]...)}
	c.cmd.Args[0] = os.Args[0]
	c.cmd.Env = os.Environ()
	_ = become(rank, size, dir, func(name, value string) error { // the last of a name counts
		c.cmd.Env = append(c.cmd.Env, name+"="+value)
		return nil
	})
	c.cmd.Stdin, c.cmd.Stderr = bytes.NewReader(in), &c.said
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return c
}

// run starts the process and waits for its end.
func (c *child) run() error {
	runtime.LockOSThread() // Pdeathsig comes when the thread that started the process ends
	defer runtime.UnlockOSThread()
	c.mu.Lock()
	err := c.cmd.Start()
	c.mu.Unlock()
	if err != nil {
		return exit.Lost.Errorf("rank %d: %w", c.rank, err)
	}
	err = c.cmd.Wait()
	if err == nil {
		return nil
	}
	code := exit.Lost
	if n := c.cmd.ProcessState.ExitCode(); n > 0 {
		code = exit.Kind(n)
	}
	return code.Errorf("rank %d: %s", c.rank, c.lastWords(err))
}

// lastWords is the last line that the process wrote, else how it ended.
func (c *child) lastWords(err error) string {
	lines := strings.Split(strings.TrimSpace(c.said.String()), "\n")
	if last := strings.TrimSpace(lines[len(lines)-1]); last != "" {
		return last
	}
	return fmt.Sprint("its process ended: ", err)
}

func (c *child) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmd.Process != nil {
		_ = c.cmd.Process.Kill() // it may just have ended
	}
}
