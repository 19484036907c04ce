// Command moving serves bench/reshard.sh: "make DIR LAYERS VOCAB" writes a checkpoint of llama3-1b's shapes with that
// many layers, model and both moments in float32, and DIR.json, its config.json; "time CMD..." runs a command and prints
// its seconds and its peak resident memory in MiB.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"titan/libtitan/checkpoint"
	"titan/libtitan/dtype"
	"titan/libtitan/model/llama3"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "moving:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 4 && args[0] == "make":
		layers, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		vocab, err := strconv.Atoi(args[3])
		if err != nil {
			return err
		}
		return makeCheckpoint(args[1], layers, vocab)
	case len(args) > 1 && args[0] == "time":
		return measure(args[1:])
	}
	return errors.New("moving: want make DIR LAYERS VOCAB, or time CMD ARGS")
}

func makeCheckpoint(dir string, layers, vocab int) error {
	p, err := llama3.Find("llama3-1b")
	if err != nil {
		return err
	}
	p.Config.NumLayers, p.Config.VocabSize = layers, vocab
	var s checkpoint.State
	add := func(fqn string, path []any, shape []int64) {
		seed := uint64(len(s.Tensors)) << 40
		fill := func(dst []byte, off int64) error { scramble(dst, seed+uint64(off)); return nil }
		s.Tensors = append(s.Tensors, checkpoint.Tensor{FQN: fqn, Path: path, DType: dtype.Float32, Shape: shape, Chunks: checkpoint.Whole(shape, fill)})
	}
	for fqn, shape := range llama3.Shapes(p.Config) {
		add(fqn, nil, shape)
		for _, moment := range []string{"exp_avg", "exp_avg_sq"} {
			add("optimizer.state."+fqn+"."+moment, []any{"optimizer", "state." + fqn + "." + moment}, shape)
		}
	}
	f, err := os.Create(dir + ".json")
	if err != nil {
		return err
	}
	defer f.Close()
	if err := llama3.WriteHuggingFace(f, p.Config, dtype.Float32); err != nil {
		return err
	}
	return checkpoint.Write(context.Background(), dir, s, checkpoint.WriteOptions{})
}

// scramble fills dst with finite float32 values that do not compress: splitmix64 of the place, exponents cut.
func scramble(dst []byte, at uint64) {
	for i := 0; i+8 <= len(dst); i += 8 {
		z := (at + uint64(i)) * 0x9e3779b97f4a7c15
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		binary.LittleEndian.PutUint64(dst[i:], (z^z>>31)&^0x4000000040000000)
	}
}

// measure prints a command's seconds and peak resident memory.
func measure(args []string) error {
	c := exec.Command(args[0], args[1:]...)
	c.Stdout, c.Stderr = os.Stderr, os.Stderr
	start := time.Now()
	err := c.Run()
	took := time.Since(start)
	if usage, ok := c.ProcessState.SysUsage().(*syscall.Rusage); ok {
		fmt.Printf("%.3f %d\n", took.Seconds(), usage.Maxrss>>10) // the kernel counts in KiB
	}
	return err
}
