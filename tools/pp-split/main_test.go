package main

import (
	"testing"

	"titan/tools/internal/apptest"
)

func TestMain(m *testing.M)     { apptest.Main(m, "meshplan", "pp-split") }
func TestScripts(t *testing.T)  { apptest.Scripts(t) }
func TestReadme(t *testing.T)   { apptest.Readme(t) }
func TestExamples(t *testing.T) { apptest.Examples(t, tool()) }
