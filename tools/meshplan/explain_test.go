package main

import (
	"math"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/estimate"
	"titan/libtitan/manifest"
	"titan/libtitan/pipeline"
)

// What a plan loses by adds up to the last digit: what costs more, and what makes up for it.
func TestLosesBy(t *testing.T) {
	percent := regexp.MustCompile(`[-+]?[0-9]+\.[0-9]{2}%`)
	hundredths := func(text string) int {
		x, err := strconv.ParseFloat(text[:len(text)-1], 64)
		require.NoError(t, err)
		return int(math.Round(100 * x))
	}
	h100, err := estimate.FindMachine("h100")
	require.NoError(t, err)
	o := defaults()
	o.model, o.worldSize = "llama3-8b", 64
	o.given = func(flag string) bool { return flag == "world-size" }
	j, err := estimate.FromManifest(job(t, o))
	require.NoError(t, err)
	found, err := estimate.Search(t.Context(), &estimate.Space{Job: *j, World: 64, Schedules: pipeline.Names(), Machine: h100, AC: []manifest.ActivationCheckpoint{{Mode: "none"}, {Mode: "full"}}}, 40)
	require.NoError(t, err)
	gains := 0
	for _, p := range found.Plans[1:] {
		text := losesBy(p, found.Plans[0])
		parts := percent.FindAllString(text, -1)
		require.NotEmpty(t, parts, text)
		total := 0
		if text[:7] != "as fast" {
			total, parts = hundredths(parts[0]), parts[1:]
		}
		sum := 0
		for _, part := range parts {
			sum += hundredths(part)
			if part[0] == '-' {
				gains++
			}
		}
		require.Equal(t, total, sum, text)
	}
	require.Positive(t, gains, "no plan of %d gains by anything", len(found.Plans))
}
