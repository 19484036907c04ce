package manifest

import (
	"fmt"
	"strconv"
	"strings"
)

// ParseActivationCheckpoint reads none, full, selective (the same as selective:op), selective:op, selective:cheap, or
// selective:N for every N-th layer.
func ParseActivationCheckpoint(s string) (*ActivationCheckpoint, error) {
	mode, option, _ := strings.Cut(s, ":")
	a := &ActivationCheckpoint{Mode: mode, Option: option}
	switch {
	case mode == "selective" && option == "":
		a.Option = "op"
		return a, nil
	case mode == "selective" && (option == "op" || option == "cheap"), (mode == "none" || mode == "full") && option == "":
		return a, nil
	case mode == "selective":
		if n, err := strconv.Atoi(option); err == nil && n >= 0 {
			return a, nil
		}
	}
	return nil, fmt.Errorf("%q is not among none, full, selective:op, selective:cheap, selective:N", s)
}
