package main

import (
	_ "embed"
	"encoding/json"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"titan/libtitan/alloc"
	"titan/libtitan/snapshot"
)

// pageHTML is the page with its style and script; the data go where it says so. It needs nothing from outside.
//
//go:embed page.html
var pageHTML string

const pageData = "/*DATA*/"

// pageView is what page.html's script reads. The timeline has at most some hundred points, whatever the trace.
type pageView struct {
	Title          string           `json:"title"`
	Device         int              `json:"device"`
	Events         int              `json:"events"`
	History        snapshot.History `json:"history"`
	Notes          []string         `json:"notes"`
	Verdict        string           `json:"verdict"`
	Peak           alloc.Counts     `json:"peak"`
	End            alloc.Counts     `json:"end"`
	AtPeakActive   alloc.Counts     `json:"at_peak_active"`
	Counterfactual int64            `json:"counterfactual"`
	PeakEvent      int              `json:"peak_event"`
	Event          []int            `json:"event"`
	Time           []int64          `json:"time"` // microseconds after the first point
	At             []alloc.Counts   `json:"at"`   // at the point's highest active
	Max            []alloc.Counts   `json:"max"`  // of the point's events
	Layers         []pageLayer      `json:"layers"`
}

// pageLayer is an owner's bytes at each point.
type pageLayer struct {
	Label    string   `json:"label"`
	Category string   `json:"category"`
	Frames   []string `json:"frames"` // outermost first
	Active   []int64  `json:"active"`
	Pending  []int64  `json:"pending"`
}

func writePage(w io.Writer, path string, s *snapshot.Snapshot, r *snapshot.Report) error {
	data, err := json.Marshal(newPageView(path, s, r)) // escapes < and >, so that no name ends the script
	if err != nil {
		return err
	}
	before, after, _ := strings.Cut(pageHTML, pageData)
	for _, part := range []string{before, string(data), after} {
		if _, err := io.WriteString(w, part); err != nil {
			return err
		}
	}
	return nil
}

func newPageView(path string, s *snapshot.Snapshot, r *snapshot.Report) *pageView {
	t := r.Timeline
	v := &pageView{
		Title: filepath.Base(path), Device: r.Device, Events: r.Events, History: r.History, Notes: r.Notes, Verdict: verdict(r), PeakEvent: r.PeakEvent,
		Peak: r.Peak, End: r.End, AtPeakActive: r.AtPeakActive, Counterfactual: r.Counterfactual, Layers: []pageLayer{},
	}
	if path == "-" {
		v.Title = "standard input"
	}
	for _, p := range t.Points {
		v.Event = append(v.Event, p.Event)
		v.Time = append(v.Time, max(0, p.Time-t.Points[0].Time))
		v.At = append(v.At, p.At)
		v.Max = append(v.Max, p.Max)
	}
	for _, y := range t.Layers {
		o := &s.Owners[y.Owner]
		l := pageLayer{Label: o.String(), Category: o.Category(), Active: y.Active, Pending: y.Pending, Frames: []string{}}
		for i := range o.Frames {
			l.Frames = append(l.Frames, o.Frames[len(o.Frames)-1-i].String())
		}
		v.Layers = append(v.Layers, l)
	}
	if slices.Max(t.Others.Active) > 0 {
		v.Layers = append(v.Layers, pageLayer{Label: "all others", Frames: []string{"all others"}, Active: t.Others.Active, Pending: t.Others.Pending})
	}
	return v
}
