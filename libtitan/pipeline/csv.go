package pipeline

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// CSV is the name of a schedule that was read from a file.
const CSV = "CSV"

// maxCSVBytes bounds a file: a million actions in lowered form take less.
const maxCSVBytes = 64 << 20

// ReadCSV reads a schedule in the form of PyTorch's pipelining, and checks it (see [Check]): a row for each pp
// rank, an action in each cell, an empty cell for a bubble. Cells may have blanks around them or be quoted, rows
// may be ragged and end in CRLF, and empty rows at the end do not count. An action is <stage><kind>[<microbatch>];
// (2F3;5B0)OVERLAP_F_B groups some. A file with a SEND, RECV, UNSHARD, RESHARD or REDUCE_GRAD is in lowered form:
// then these are checked too, and left out of the result. Which rank runs a stage is what the file says. The
// error names rank and column, both from 0, and the action.
func ReadCSV(r io.Reader) (*Schedule, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxCSVBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxCSVBytes {
		return nil, fmt.Errorf("schedule %s: larger than %d MiB", CSV, maxCSVBytes>>20)
	}
	f, err := parseCSV(string(data))
	if err != nil {
		return nil, fmt.Errorf("schedule %s: %w", CSV, err)
	}
	s, err := f.schedule()
	if err != nil {
		return nil, fmt.Errorf("schedule %s: %w", CSV, err)
	}
	if err := Check(s); err != nil {
		return nil, err
	}
	if err := f.checkLowered(s); err != nil {
		return nil, fmt.Errorf("schedule %s: %w", CSV, err)
	}
	return s, nil
}

// file is a schedule CSV's cells, the bubbles left out.
type file struct {
	ranks   [][]Action
	columns [][]int // of each action
}

func parseCSV(text string) (*file, error) {
	text = strings.TrimPrefix(text, "\ufeff") // of a spreadsheet
	rows := strings.Split(strings.TrimRight(text, " \t\r\n,"), "\n")
	f := &file{make([][]Action, len(rows)), make([][]int, len(rows))}
	for rank, row := range rows {
		for column, cell := range strings.Split(row, ",") {
			actions, err := parseCell(strings.TrimSpace(cell))
			if err != nil {
				return nil, fmt.Errorf("rank %d, column %d: %.40q: %w", rank, column, strings.TrimSpace(cell), err)
			}
			for _, a := range actions {
				f.ranks[rank] = append(f.ranks[rank], a)
				f.columns[rank] = append(f.columns[rank], column)
			}
		}
		if f.ranks[rank] == nil {
			return nil, fmt.Errorf("rank %d has no actions: each row is a pipeline rank with stages of its own", rank)
		}
	}
	return f, nil
}

const groupSuffix = ")OVERLAP_F_B"

// parseCell reads a cell: nothing, an action, or a group.
func parseCell(cell string) ([]Action, error) {
	if n := len(cell); n >= 2 && cell[0] == '"' && cell[n-1] == '"' {
		cell = strings.TrimSpace(cell[1 : n-1])
	}
	if cell == "" {
		return nil, nil
	}
	inner, grouped := strings.CutPrefix(cell, "(")
	if !grouped {
		a, err := parseAction(cell)
		return []Action{a}, err
	}
	inner, ok := strings.CutSuffix(inner, groupSuffix)
	if !ok {
		return nil, fmt.Errorf("a group is written (2F3;5B0)OVERLAP_F_B")
	}
	var actions []Action
	for word := range strings.SplitSeq(inner, ";") {
		a, err := parseAction(strings.TrimSpace(word))
		if err != nil {
			return nil, err
		}
		a.WithNext = true
		actions = append(actions, a)
	}
	if len(actions) != 2 || actions[0].Kind != Forward || actions[1].Kind != Backward && actions[1].Kind != InputGrad {
		return nil, fmt.Errorf("OVERLAP_F_B groups a forward and a backward")
	}
	actions[1].WithNext = false
	return actions, nil
}

var actionForm = regexp.MustCompile(`^(\d{1,7})([A-Z][A-Z_]*)(\d{0,7})$`)

var wholeStage = []Kind{Unshard, Reshard, ReduceGrad}

var csvKinds = append([]Kind{Forward, Backward, InputGrad, WeightGrad, SendF, RecvF, SendB, RecvB}, wholeStage...)

func parseAction(word string) (a Action, err error) {
	parts := actionForm.FindStringSubmatch(word)
	if parts == nil {
		return a, fmt.Errorf("not an action: want <stage><kind><microbatch>, as in 2F0")
	}
	a.Kind = Kind(parts[2])
	whole := slices.Contains(wholeStage, a.Kind)
	switch {
	case !slices.Contains(csvKinds, a.Kind):
		return a, fmt.Errorf("kind %s is none of F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD, REDUCE_GRAD", a.Kind)
	case whole && parts[3] != "":
		return a, fmt.Errorf("%s is for a whole stage: it takes no microbatch", a.Kind)
	case !whole && parts[3] == "":
		return a, fmt.Errorf("the microbatch is missing")
	}
	a.Stage, _ = strconv.Atoi(parts[1])
	a.Microbatch, err = none, nil
	if !whole {
		a.Microbatch, _ = strconv.Atoi(parts[3])
	}
	return a, err
}

// schedule keeps the work of f, and finds the size of it and the rank of each stage: the first that has it.
func (f *file) schedule() (*Schedule, error) {
	s := &Schedule{Name: CSV, Ranks: make([][]Action, len(f.ranks)), columns: make([][]int, len(f.ranks))}
	for rank, actions := range f.ranks {
		for i, a := range actions {
			if _, work := kindNumber[a.Kind]; work {
				s.Ranks[rank] = append(s.Ranks[rank], a)
				s.columns[rank] = append(s.columns[rank], f.columns[rank][i])
				s.NumStages, s.NumMicrobatches = max(s.NumStages, a.Stage+1), max(s.NumMicrobatches, a.Microbatch+1)
			}
		}
	}
	if err := inBounds(s.NumStages, s.NumMicrobatches); err != nil {
		return nil, err
	}
	s.StageRank = slices.Repeat([]int{-1}, s.NumStages)
	for rank, actions := range s.Ranks {
		if actions == nil {
			return nil, fmt.Errorf("rank %d has no work, sends and receives alone", rank)
		}
		for _, a := range actions {
			if s.StageRank[a.Stage] < 0 {
				s.StageRank[a.Stage] = rank
			}
		}
	}
	if missing := slices.Index(s.StageRank, -1); missing >= 0 {
		return nil, fmt.Errorf("stage %d is on no rank, though there is a stage %d", missing, s.NumStages-1)
	}
	return s, nil
}

// WriteCSV writes a row for each rank, of a schedule's Ranks or of its lowered form, as ReadCSV and PyTorch read it.
func WriteCSV(w io.Writer, ranks [][]Action) error {
	for _, actions := range ranks {
		if _, err := fmt.Fprintln(w, strings.Join(Cells(actions), ",")); err != nil {
			return err
		}
	}
	return nil
}

// Cells are the cells of a rank's row: an action or a group each.
func Cells(actions []Action) []string {
	var cells []string
	for len(actions) > 0 {
		together := group(actions)
		actions = actions[len(together):]
		var words []string
		for _, a := range together {
			words = append(words, a.String())
		}
		cell := strings.Join(words, ";")
		if len(words) > 1 {
			cell = "(" + cell + groupSuffix
		}
		cells = append(cells, cell)
	}
	return cells
}
