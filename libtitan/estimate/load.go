package estimate

import (
	"slices"

	"titan/libtitan/pipeline"
)

// load is what the pipeline ranks of a job have to do and to hold, whatever the order and the shards.
type load struct {
	kinds   []rankLoad // of rank, each once
	through [2]float64 // seconds that no pass goes below: with split, and with whole backwards
	ends    [2]held    // the first and the last rank with one microbatch
	weights float64    // of the fullest rank
	blocks  int        // of the rank with the most
}

// rankLoad is the weights of a rank, on one rank of tp before FSDP cuts them, and the seconds of one microbatch.
type rankLoad struct{ weights, forward, backward float64 }

// loadKey is what a load depends on, for one model and machine.
type loadKey struct {
	tp, cp, pp, ep, rows, microbatches, stages, second int
	accumulates                                        bool
	mode, option                                       string
}

func (j *Job) loadKey() loadKey {
	d := j.Dims
	k := loadKey{d.TP, d.CP, d.PP, d.EP, j.Rows, j.NumMicrobatches, len(j.Stages), 0, j.accumulates(), j.AC.Mode, j.AC.Option}
	if k.stages > k.pp { // loop or V
		k.second = j.Stages[k.pp].Rank
	}
	return k
}

func (c *clock) load(j *Job) *load {
	if j.custom != nil {
		return c.makeLoad(j)
	}
	key := j.loadKey()
	l := c.loads[key]
	if l == nil {
		l = c.makeLoad(j)
		c.loads[key] = l
	}
	return l
}

func (c *clock) makeLoad(j *Job) *load {
	l := &load{}
	stages := c.stages(j)
	ranks := make([]rankLoad, j.Dims.PP)
	blocks := make([]int, j.Dims.PP)
	for i, s := range j.Stages {
		r := &ranks[s.Rank]
		r.weights += j.stageParams(s)
		r.forward += stages[i].forward
		r.backward += stages[i].backward()
		blocks[s.Rank] += s.Layers + 1
	}
	for _, r := range ranks {
		l.weights = max(l.weights, r.weights)
		if !slices.Contains(l.kinds, r) {
			l.kinds = append(l.kinds, r)
		}
	}
	l.blocks = slices.Max(blocks)
	l.through[0], l.through[1] = j.through(stages, ranks, false), j.through(stages, ranks, true)
	for i, rank := range []int{0, j.Dims.PP - 1} {
		l.ends[i] = j.hold(c.m, rank, [][]int{{1}})
	}
	return l
}

// through is a time that no pass goes below: a rank works through all microbatches once the first has come to it and,
// where backwards are whole, the last goes back from it to the first stage. Both orders of stages start with one of
// each rank.
func (j *Job) through(stages []seconds, ranks []rankLoad, wholeBackwards bool) (most float64) {
	path := 0.0
	for i, r := range ranks {
		most = max(most, path+(r.forward+r.backward)*float64(j.NumMicrobatches))
		path += stages[i].forward
		if wholeBackwards {
			path += stages[i].backward()
		}
	}
	return most - 4e-9*float64(len(stages)*(j.NumMicrobatches+1)) // the simulator counts whole nanoseconds
}

// run is how long a job's load takes in the order of its schedule.
type run struct{ pass, bubble float64 }

type runKey struct {
	loadKey
	schedule string
}

func (c *clock) run(j *Job) (run, error) {
	if j.custom != nil {
		return c.makeRun(j)
	}
	key := runKey{j.loadKey(), j.Schedule}
	r, known := c.runs[key]
	if known {
		return r, nil
	}
	r, err := c.makeRun(j)
	if err == nil {
		c.runs[key] = r
	}
	return r, err
}

// makeRun finds the seconds in which all microbatches go through the stages and back, and the share that ranks wait.
func (c *clock) makeRun(j *Job) (r run, err error) {
	stages := c.stages(j)
	if j.Dims.PP == 1 {
		for _, s := range stages {
			r.pass += float64(j.NumMicrobatches) * (s.forward + s.backward())
		}
		return r, nil
	}
	s, err := c.schedule(j)
	if err != nil {
		return r, err
	}
	send := nanos(c.m.send(j, j.message()))
	line, err := pipeline.SimulateStages(s, func(i int) pipeline.Times {
		in, weights := nanos(stages[i].inputGrad), nanos(stages[i].weightGrad)
		return pipeline.Times{F: nanos(stages[i].forward), I: in, W: weights, B: in + weights, Send: send}
	})
	if err != nil {
		return r, err
	}
	return run{float64(line.Makespan) / 1e9, line.Bubble}, nil
}

func nanos(s float64) int { return int(s*1e9 + 0.5) }
