package checkpoint

import (
	"regexp"
	"strings"

	"titan/libtitan/exit"
)

// Spelling is how the names of a Llama's parameters are spelt.
type Spelling string

// The spellings; all are understood on input.
const (
	SpellTitan Spelling = "titan"           // lm_head, attention.wq
	SpellV02   Spelling = "torchtitan-0.2"  // output, attention.wq
	SpellHead  Spelling = "torchtitan-head" // lm_head, attention.qkv_linear.wq
)

// optimizerPart is what an optimizer's keys put before a parameter's name.
var optimizerPart = regexp.MustCompile(`^((model|optim|optimizer)\.)?((state|param_groups)\.)?`)

// splitPrefix cuts a name into the part that says whose state it is and the rest, which begins with a parameter's
// name if there is one.
func splitPrefix(fqn string) (prefix, param string) {
	n := len(optimizerPart.FindString(fqn))
	return fqn[:n], fqn[n:]
}

// ofModel reports whether an item is the model's own, and not of the optimizer, the data or the trainer.
func ofModel(it Item) bool {
	top, _, _ := strings.Cut(it.FQN, ".")
	if len(it.Path) > 1 {
		top, _ = it.Path[0].(string)
	}
	switch top {
	case "optimizer", "optim", "lr_scheduler", "dataloader", "train_state":
		return false
	}
	return true
}

// unwrapped is a name without the parts that torch.compile, activation checkpointing and DDP put into it.
func unwrapped(fqn string) string {
	parts := strings.Split(fqn, ".")
	out := parts[:0]
	for _, p := range parts {
		if !wrapper(p) {
			out = append(out, p)
		}
	}
	return strings.Join(out, ".")
}

var (
	anyHead = regexp.MustCompile(`^(lm_head|output)(\.weight(?:\.|$))`)
	anyQKV  = regexp.MustCompile(`^(layers\.\d+\.attention\.)(?:qkv_linear\.)?(w[qkv]\.weight(?:\.|$))`)
)

// respell is a name, of a parameter or of its optimizer's state, in another spelling. Other names stay.
func respell(fqn string, to Spelling) string {
	prefix, param := splitPrefix(fqn)
	head, qkv := "lm_head", ""
	switch to {
	case SpellV02:
		head = "output"
	case SpellHead:
		qkv = "qkv_linear."
	}
	param = anyHead.ReplaceAllString(param, head+"$2")
	param = anyQKV.ReplaceAllString(param, "${1}"+qkv+"$2")
	return prefix + param
}

// ParseSpelling finds the spelling that --to names.
func ParseSpelling(name string) (Spelling, error) {
	switch s := Spelling(name); s {
	case SpellTitan, SpellV02, SpellHead:
		return s, nil
	}
	return "", exit.Usage.Errorf("--to %s: not among %s, %s, %s", name, SpellTitan, SpellV02, SpellHead)
}
