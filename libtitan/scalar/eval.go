package scalar

import "math"

// Eval is the reference, in float64 and without rounding: p on rows of width elements.
func Eval(p *Program, in [][]float64, rows, width int) [][]float64 {
	vals := make([][]float64, len(p.Steps))
	next := 0
	for i, s := range p.Steps {
		if s.Code == Input {
			vals[i] = in[next]
			next++
			continue
		}
		vals[i] = evalStep(p, s, vals, rows, width)
	}
	var out [][]float64
	for _, o := range p.Out {
		from, kind := vals[o.Value], p.Steps[o.Value].Kind
		y := make([]float64, size(o.Kind, rows, width))
		for r := range rows {
			for c := range width {
				switch v := from[place(kind, r, c, width)]; {
				case o.Kind == Col && kind == Full:
					y[c] += v
				case o.Kind == One && kind == Full:
					y[0] = max(y[0], math.Abs(v))
				default:
					y[place(o.Kind, r, c, width)] = v
				}
			}
		}
		out = append(out, y)
	}
	return out
}

// size is how many values of a kind there are, place where that of a row and column is.
func size(k Kind, rows, width int) int { return [...]int{rows * width, rows, width, 1}[k] }

func place(k Kind, r, c, width int) int { return [...]int{r*width + c, r, c, 0}[k] }

func evalStep(p *Program, s Step, vals [][]float64, rows, width int) []float64 {
	y := make([]float64, size(s.Kind, rows, width))
	for r := range rows {
		for c := range width {
			arg := func(i int) float64 {
				return vals[s.Args[i]][place(p.Steps[s.Args[i]].Kind, r, c, width)]
			}
			at := place(s.Kind, r, c, width)
			switch s.Code {
			case Const:
				y[at] = s.Imm
			case Add:
				y[at] = arg(0) + arg(1)
			case Sub:
				y[at] = arg(0) - arg(1)
			case Mul:
				y[at] = arg(0) * arg(1)
			case Sigmoid:
				y[at] = 1 / (1 + math.Exp(-arg(0)))
			case Round:
				y[at] = arg(0)
			case Sum:
				product := 1.0
				for i := range s.Args {
					product *= arg(i)
				}
				y[at] += product
			case Mean:
				y[at] = arg(0) / float64(width)
			case RStd:
				y[at] = 1 / math.Sqrt(arg(0)/float64(width)+s.Imm)
			}
		}
	}
	return y
}
