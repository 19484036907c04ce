package estimate

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMachines(t *testing.T) {
	all, err := Machines()
	require.NoError(t, err)
	var names []string
	for _, m := range all {
		names = append(names, m.Name)
		text, err := json.Marshal(m)
		require.NoError(t, err)
		again, err := ReadMachine(bytes.NewReader(text))
		require.NoError(t, err)
		require.Equal(t, m, again)
	}
	require.Equal(t, []string{"a100", "b200", "h100-96g-500w", "h100", "h200", "l40s"}, names)
	_, err = FindMachine("H20O")
	require.EqualError(t, err, `unknown GPU "H20O": did you mean h200?`)
	_, err = FindMachine("tpu")
	require.EqualError(t, err, `unknown GPU "tpu": not among a100, b200, h100-96g-500w, h100, h200, l40s; describe it with --hardware FILE.json`)
}

func TestReadMachineRefuses(t *testing.T) {
	m, err := FindMachine("h200")
	require.NoError(t, err)
	text, err := json.Marshal(m)
	require.NoError(t, err)
	for _, c := range []struct{ old, replaced, want string }{
		{`"sms":132`, `"sms":0`, "hardware: sms: 0 is out of range: it must be 1 to 1e+15"},
		{`"memory_gbps":4800`, `"memory_gbps":-1`, "hardware: memory_gbps: -1 is out of range: it must be 0.001 to 1e+15"},
		{`"memory_gbps":4800`, `"memory_gbps":1e300`, "hardware: memory_gbps: 1e+300 is out of range: it must be 0.001 to 1e+15"},
		{`"sms"`, `"smms"`, `hardware: want one JSON object as meshplan gpus --json prints: json: unknown field "smms"`},
		{`"name":"h200"`, `"name":""`, "hardware: name: want 1 to 80 letters"},
		{`{"name"`, `{} {"name"`, "hardware: something follows the object"},
	} {
		_, err := ReadMachine(strings.NewReader(strings.Replace(string(text), c.old, c.replaced, 1)))
		require.EqualError(t, err, c.want)
	}
}

func FuzzReadMachine(f *testing.F) {
	all, err := Machines()
	require.NoError(f, err)
	for _, m := range all {
		text, err := json.Marshal(m)
		require.NoError(f, err)
		f.Add(text)
	}
	text, err := os.ReadFile("testdata/cpu.json")
	require.NoError(f, err)
	f.Add(text)
	f.Add([]byte(`{"name":"x","memory_bytes":1e400}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := ReadMachine(bytes.NewReader(text))
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		require.NoError(t, m.check())
	})
}
