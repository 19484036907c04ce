package app

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// terminal opens a pseudo-terminal: what is written to tty can be read from the other end.
func terminal(t *testing.T) (tty, other *os.File) {
	other, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("SKIPPED: no pseudo-terminals here, so bars and prompts on a terminal are not tested:", err)
	}
	t.Cleanup(func() { other.Close() })
	n, err := unix.IoctlGetInt(int(other.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetPointerInt(int(other.Fd()), unix.TIOCSPTLCK, 0))
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { tty.Close() })
	require.NoError(t, unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 25, Col: 100}))
	return tty, other
}

func TestTerminalOnStdinIsAUsageError(t *testing.T) {
	tty, _ := terminal(t)
	f := &fake{do: func(_ context.Context, e *Env) error {
		_, err := e.ReadManifest()
		return err
	}}
	for _, args := range [][]string{{"fake"}, {"fake", "pack", "file"}} {
		var out, errs bytes.Buffer
		require.Equal(t, 2, Run(f.tool(), args, tty, &out, &errs))
		command := strings.Join(args[:min(2, len(args))], " ")
		require.Equal(t, "fake: stdin is a terminal: pipe a manifest in (meshplan ... | "+command+") or name one with -i FILE\n", errs.String())
	}
}

// A tool knows whether its data would fill a screen, and by which path it was called.
func TestStdoutAndTheProgramAreKnown(t *testing.T) {
	tty, _ := terminal(t)
	for args0, want := range map[string]string{"fake": "fake", "bin/fake": "bin/fake", "/usr/bin/other": "/usr/bin/other", "other": "fake"} {
		for _, out := range []io.Writer{tty, &bytes.Buffer{}} {
			f := &fake{do: func(_ context.Context, e *Env) error {
				require.Equal(t, want, e.Program)
				require.Equal(t, out == io.Writer(tty), e.OutIsTerminal())
				return nil
			}}
			require.Equal(t, 0, Run(f.tool(), []string{args0}, strings.NewReader(""), out, io.Discard))
		}
	}
}

func TestBarIsDrawnOnATerminalAlone(t *testing.T) {
	f := &fake{do: func(_ context.Context, e *Env) error {
		bar := e.Bytes("copy", 4<<20)
		defer bar.Close()
		for range 4 {
			bar.Add(1 << 20)
			time.Sleep(redrawEvery)
		}
		e.Log.Info("halfway")
		return nil
	}}
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	draw := func(args ...string) string {
		tty, other := terminal(t)
		seen := make(chan string)
		go func() {
			var b strings.Builder
			buf := make([]byte, 4096)
			for {
				n, err := other.Read(buf)
				b.Write(buf[:n])
				if err != nil || strings.Contains(b.String(), "END") {
					seen <- b.String()
					return
				}
			}
		}()
		require.Equal(t, 0, Run(f.tool(), append([]string{"fake"}, args...), strings.NewReader(""), &bytes.Buffer{}, tty))
		fmt.Fprintln(tty, "END")
		return <-seen
	}
	screen := draw()
	require.Regexp(t, `copy \[=+ +\]  25%  1\.0 MiB / 4\.0 MiB  `, screen)
	require.Regexp(t, `copy \[=+\] 100%  4\.0 MiB / 4\.0 MiB  \d.* MiB/s  0s left`, screen)
	require.Contains(t, screen, clearLine+"fake: halfway\r\n")
	require.Contains(t, screen, clearLine+"END")
	require.NotContains(t, draw("--no-progress"), "MiB")
	require.NotContains(t, draw("--quiet"), "MiB")
	t.Setenv("NO_COLOR", "1")
	require.NotContains(t, draw(), "MiB")
	_, _, errs := f.exec("")
	require.Equal(t, "fake: halfway\n", errs)
}
