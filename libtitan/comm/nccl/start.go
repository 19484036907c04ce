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

// Start makes this process rank 0 of size ranks on this machine and starts the others: this program again, with the
// same arguments and in on its standard input. They end when this process does. The context that it returns ends when
// one of them fails, with the reason as its cause. stop waits for all.
func Start(ctx context.Context, size int, in []byte) (inner context.Context, stop func() error, err error) {
	dir, err := os.MkdirTemp("", "titan-ranks-") // only this user may enter
	if err != nil {
		return nil, nil, err
	}
	if err := become(0, size, dir, os.Setenv); err != nil {
		return nil, nil, err
	}
	inner, cancel := context.WithCancelCause(ctx)
	var all sync.WaitGroup
	children := make([]*child, size)
	for r := 1; r < size; r++ {
		c := newChild(r, size, dir, in)
		children[r] = c
		all.Go(func() {
			if err := c.run(); err != nil {
				cancel(err)
			}
		})
	}
	return inner, func() error {
		defer cancel(nil)
		timer := time.AfterFunc(10*linger, func() {
			for _, c := range children[1:] {
				c.kill()
			}
		})
		all.Wait()
		timer.Stop()
		return os.RemoveAll(dir)
	}, nil
}

// become sets the variables that torchrun would, and the folder.
func become(rank, size int, dir string, set func(name, value string) error) error {
	for _, v := range [][2]string{
		{"RANK", strconv.Itoa(rank)}, {"LOCAL_RANK", strconv.Itoa(rank)}, {"WORLD_SIZE", strconv.Itoa(size)},
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
