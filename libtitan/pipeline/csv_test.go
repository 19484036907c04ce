package pipeline

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// custom is torchtitan's tests/assets/custom_schedule.csv: 2 ranks, 4 stages, 8 microbatches.
func custom(t testing.TB) string {
	data, err := os.ReadFile("testdata/custom_schedule.csv")
	require.NoError(t, err)
	return string(data)
}

func TestReadCSV(t *testing.T) {
	s, err := ReadCSV(strings.NewReader(custom(t)))
	require.NoError(t, err)
	require.Equal(t, "CSV", s.Name)
	require.Equal(t, 4, s.NumStages)
	require.Equal(t, 8, s.NumMicrobatches)
	require.Equal(t, []int{0, 1, 0, 1}, s.StageRank)
	require.Equal(t, custom(t), text(t, s.Ranks))
	line, err := Simulate(s, Ticks())
	require.NoError(t, err)
	require.Equal(t, []int{8, 8, 8, 8}, line.InFlight)
}

// cases 5: what a hand does to a file, accepted where it means the same.
func TestReadCSVByHand(t *testing.T) {
	clean, err := ReadCSV(strings.NewReader(custom(t)))
	require.NoError(t, err)
	for name, change := range map[string]func(string) string{
		"a: blanks, CRLF, empty line": func(s string) string {
			return strings.ReplaceAll(strings.ReplaceAll(s, ",", " ,\t "), "\n", " \r\n") + " \r\n\n"
		},
		"bubbles":     func(s string) string { return strings.ReplaceAll(s, ",2F0", ", ,,2F0") },
		"quotes, BOM": func(s string) string { return "\ufeff" + strings.ReplaceAll(s, "0F1,", `"0F1 ",`) },
		"g: ragged":   func(s string) string { return strings.Replace(s, "\n", ",,,\n", 1) },
		"end cut":     func(s string) string { return strings.TrimSpace(s) },
	} {
		s, err := ReadCSV(strings.NewReader(change(custom(t))))
		require.NoError(t, err, name)
		require.Equal(t, clean.Ranks, s.Ranks, name)
		require.Equal(t, clean.StageRank, s.StageRank, name)
	}
}

func TestReadCSVRefuses(t *testing.T) {
	for _, c := range []struct{ name, old, new, want string }{
		{"b: weight gradient lost", "0W0,", "", "rank 0, column 20: 0I0: stage 0 never gets the weight gradient of microbatch 0"},
		{"b: left empty", "0W0,", ",", "rank 0, column 20: 0I0: stage 0 never gets the weight gradient of microbatch 0"},
		{"c: weight gradient first", "0I0,0W0", "0W0,0I0", "rank 0, column 20: 0W0: comes before its input gradient"},
		{"d: both backwards", "0I0,", "0I0,0B0,", "rank 0, column 20: 0I0: the full backward in column 21 has done it"},
		{"e: on two ranks", "1F0,", "1F0,", "rank 1, column 0: 1F0: stage 1 is on rank 0 too"},
		{"f: unknown letter", "0F1,", "0X0,", `rank 0, column 1: "0X0": kind X is none of F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD, REDUCE_GRAD`},
		{"column in a gap", "2F1", ",,,2F1,2F1", "rank 0, column 13: 2F1: done before, in column 12"},
		{"not an action", "0F1,", "F1,", `rank 0, column 1: "F1": not an action: want <stage><kind><microbatch>, as in 2F0`},
		{"number too long", "0F1,", "0F12345678,", `rank 0, column 1: "0F12345678": not an action: want <stage><kind><microbatch>, as in 2F0`},
		{"no microbatch", "0F1,", "0F,", `rank 0, column 1: "0F": the microbatch is missing`},
		{"microbatch too much", "0F1,", "0UNSHARD1,", `rank 0, column 1: "0UNSHARD1": UNSHARD is for a whole stage: it takes no microbatch`},
		{"trailing letters", "0F1,", "0F1F,", `rank 0, column 1: "0F1F": not an action: want <stage><kind><microbatch>, as in 2F0`},
		{"huge microbatch", "0F1,", "0F9999999,", "4 stages of 10000000 microbatches are more than 1048576 actions"},
		{"huge stage", "0F1,", "9999999F1,", "10000000 stages of 8 microbatches are more than 1048576 actions"},
		{"stage left out", "0F1,", "9F1,", "stage 4 is on no rank, though there is a stage 9"},
		{"empty row", "\n", "\n,,\n", "rank 1 has no actions: each row is a pipeline rank with stages of its own"},
		{"group of what", "0F1,", "(0F1;0F1),", `rank 0, column 1: "(0F1;0F1)": a group is written (2F3;5B0)OVERLAP_F_B`},
		{"group of forwards", "0F1,", "(0F1;0F1)OVERLAP_F_B,", `rank 0, column 1: "(0F1;0F1)OVERLAP_F_B": OVERLAP_F_B groups a forward and a backward`},
		{"group of rubbish", "0F1,", "(0F1;)OVERLAP_F_B,", `rank 0, column 1: "(0F1;)OVERLAP_F_B": not an action: want <stage><kind><microbatch>, as in 2F0`},
		{"no messages", "0F1,", "0F1,0UNSHARD,", "rank 0, column 0: 0F0: no 0SEND_F0 sends its result to rank 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			changed := strings.Replace(custom(t), c.old, c.new, 1)
			if strings.HasPrefix(c.name, "e:") {
				changed = "1F0," + changed
			}
			_, err := ReadCSV(strings.NewReader(changed))
			require.EqualError(t, err, "schedule CSV: "+c.want)
		})
	}
	_, err := ReadCSV(strings.NewReader(" \n"))
	require.EqualError(t, err, "schedule CSV: rank 0 has no actions: each row is a pipeline rank with stages of its own")
}

// What a file in lowered form may get wrong that its work alone does not show.
func TestReadCSVRefusesLowered(t *testing.T) {
	const (
		rank0 = "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD"
		rank1 = "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1RESHARD"
	)
	_, err := ReadCSV(strings.NewReader(rank0 + "\n" + rank1))
	require.NoError(t, err)
	for _, c := range []struct{ name, old, new, want string }{
		{"no send", "0SEND_F0,", "", "rank 0, column 1: 0F0: no 0SEND_F0 sends its result to rank 1"},
		{"no receive", "1RECV_F0,", ",", "rank 0, column 2: 0SEND_F0: rank 1 has no 1RECV_F0"},
		{"sent before made", "0F0,0SEND_F0", "0SEND_F0,0F0", "rank 0, column 1: 0SEND_F0: comes before 0F0, whose result it sends"},
		{"received late", "1RECV_F0,1F0", "1F0,1RECV_F0", "rank 1, column 2: 1RECV_F0: comes after 1F0, which waits for it"},
		{"sent twice", "0SEND_F0,", "0SEND_F0,0SEND_F0,", "rank 0, column 3: 0SEND_F0: done before, in column 2"},
		{"to nobody", "1F0,", "1F0,1SEND_F0,", "rank 1, column 3: 1SEND_F0: no other rank waits for this result"},
		{"from nobody", "0F0,", "0RECV_F0,0F0,", "rank 0, column 1: 0RECV_F0: no other rank makes this result"},
		{"on another rank", "0SEND_F0", "1SEND_F0", "rank 0, column 2: 1SEND_F0: stage 1 is not on rank 0"},
		{"no such stage", "0SEND_F0", "7SEND_F0", "rank 0, column 2: 7SEND_F0: stage 7 is not on rank 0"},
		{"no parameters", "1UNSHARD,", "", "rank 1, column 1: 1F0: stage 1 is not unsharded"},
		{"parameters dropped", "1F1,", "1RESHARD,1F1,", "rank 1, column 7: 1F1: stage 1 is not unsharded"},
		{"gathered twice", "1F1,", "1UNSHARD,1F1,", "rank 1, column 6: 1UNSHARD: stage 1 is unsharded already"},
		{"reduced early", "0B1,0REDUCE_GRAD", "0REDUCE_GRAD,0B1", "rank 0, column 8: 0REDUCE_GRAD: comes before 0B1, whose gradient it would leave out"},
		{"unlike orders", "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1", "1RECV_F1,1RECV_F0,1F0,1B0,1SEND_B0", "rank 1, column 2: 1RECV_F0: rank 0 sends 0SEND_F0 before 0SEND_F1: receive in the order of sends"},
		{"deadlock", "0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1", "0RECV_B0,0RECV_B1,0F1,0SEND_F1,0B0", "deadlock: rank 0, column 4: 0RECV_B1: waits for 1SEND_B1; rank 1, column 5: 1RECV_F1: waits for 0SEND_F1"},
		{"no work", "0UNSHARD", "0RECV_F0\n0UNSHARD", "rank 0 has no work, sends and receives alone"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ReadCSV(strings.NewReader(strings.Replace(rank0+"\n"+rank1, c.old, c.new, 1)))
			require.EqualError(t, err, "schedule CSV: "+c.want)
		})
	}
}

// What Build makes, Lower completes and WriteCSV writes is read back as it was.
func TestCSVRoundTrip(t *testing.T) {
	all(t, func(s *Schedule, _, _ int) {
		for _, ranks := range [][][]Action{s.Ranks, s.Lower()} {
			read, err := ReadCSV(strings.NewReader(text(t, ranks)))
			require.NoError(t, err)
			require.Equal(t, s.Ranks, read.Ranks)
			require.Equal(t, s.StageRank, read.StageRank)
		}
	})
}

// Random mistakes in files of every kind: each is refused with a place or leaves a schedule that runs.
func TestReadCSVOfMistakes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var files []string
	for _, name := range Names() {
		s, err := Build(name, 2, 0, 4)
		require.NoError(t, err)
		files = append(files, text(t, s.Ranks), text(t, s.Lower()))
	}
	where := regexp.MustCompile(`rank \d+|stage \d+ is on no rank|more than \d+ actions`)
	refused := 0
	for range 10_000 {
		was := files[r.IntN(len(files))]
		changed := mistake(r, was)
		s, err := ReadCSV(strings.NewReader(changed))
		if err != nil {
			refused++
			require.Regexp(t, where, err.Error(), changed)
			require.NotContains(t, err.Error(), "\n")
			continue
		}
		_, err = Simulate(s, Times{1, 2, 1, 1, 1})
		require.NoError(t, err, changed)
	}
	require.Greater(t, refused, 5_000)
}

// mistake swaps, drops, repeats or changes some cells.
func mistake(r *rand.Rand, text string) string {
	rows := strings.Split(strings.TrimSpace(text), "\n")
	for range 1 + r.IntN(3) {
		row := r.IntN(len(rows))
		cells := strings.Split(rows[row], ",")
		i, j := r.IntN(len(cells)), r.IntN(len(cells))
		switch r.IntN(6) {
		case 0:
			cells[i], cells[j] = cells[j], cells[i]
		case 1:
			cells = slices.Delete(cells, i, i+1)
		case 2:
			cells[i] = cells[j]
		case 3:
			cells[i] = fmt.Sprintf("%d%c%d", r.IntN(5), "FBIWX"[r.IntN(5)], r.IntN(5))
		case 4:
			cells[i] = strings.ToLower(cells[i])
		case 5:
			other := r.IntN(len(rows))
			rows[other] += "," + cells[i]
			cells = strings.Split(rows[row], ",")
		}
		rows[row] = strings.Join(cells, ",")
	}
	return strings.Join(rows, "\n")
}

func FuzzReadCSV(f *testing.F) {
	f.Add(custom(f))
	f.Add("0F0,0SEND_F0,0RECV_B0,(0F1;0B0)OVERLAP_F_B\r\n1RECV_F0,1F0,1I0,1SEND_B0,1W0\n")
	f.Add("\ufeff\"0F0\", 0B0,,\n\n")
	f.Add("9999999F0")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ReadCSV(strings.NewReader(text))
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		_, err = Simulate(s, Ticks())
		require.NoError(t, err)
		var out strings.Builder
		require.NoError(t, WriteCSV(&out, s.Lower()))
		again, err := ReadCSV(strings.NewReader(out.String()))
		require.NoError(t, err)
		require.Equal(t, s.Ranks, again.Ranks)
	})
}
