package train

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"titan/libtitan/device/cuda"
)

// startup tells at debug level where the time goes from the start of the process to the end of its first step.
type startup struct {
	log   *slog.Logger
	began time.Time // of the process
	last  time.Time // when the newest part was done
}

func newStartup(log *slog.Logger) *startup {
	now := time.Now()
	began := now.Add(-processAge())
	return &startup{log: log, began: began, last: began}
}

// done says that a part is over: what took the time since the one before it.
func (s *startup) done(part string) {
	now := time.Now()
	s.log.Debug(fmt.Sprintf("start: %6d ms  %s, %d ms since the process began", now.Sub(s.last).Milliseconds(), part, now.Sub(s.began).Milliseconds()))
	s.last = now
}

// kernels says what of it all went into compiling, which other parts contain. Of what was compiled before on this machine NVRTC
// keeps the result.
func (s *startup) kernels(c cuda.Compiled) {
	s.log.Debug(fmt.Sprintf("start: within these, %d kernels of %d sources were compiled beside each other, %d ms in all, the slowest %s, %d ms",
		c.Kernels, c.Sources, c.Spent.Milliseconds(), c.Slowest, c.Longest.Milliseconds()))
}

// ticks is how often a second the kernel counts in /proc, on every architecture that Go runs on.
const ticks = 100

// processAge is how long this process has lived, to 10 ms; 0 where the system does not say.
func processAge() time.Duration {
	text, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0
	}
	return max(0, time.Duration(now.Nano())-startedAt(string(text)))
}

// startedAt reads when a process began, since the machine did, from its /proc/PID/stat: field 22 (man 5 proc). The second
// field is its name in brackets, in which anything may stand.
func startedAt(stat string) time.Duration {
	const after = 22 - 3
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) <= after {
		return 0
	}
	n, _ := strconv.ParseInt(fields[after], 10, 64)
	return time.Duration(n) * time.Second / ticks
}
