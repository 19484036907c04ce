package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/snapshot"
)

// hands does what a user does, and leaves what comes of it in the title.
const hands = `<script>
const seen = [document.title, byId("flametitle").textContent];
const mouse = (on, type, x, y) => {
  const box = on.getBoundingClientRect();
  on.dispatchEvent(new MouseEvent(type, {clientX: box.left + x, clientY: box.top + y, bubbles: true}));
};
mouse(chart, "mousemove", 500, 100);
seen.push(byId("tip").textContent.split("\n")[1]);
mouse(chart, "mousedown", 300, 100); mouse(chart, "mouseup", 300, 100);
seen.push(byId("flametitle").textContent);
mouse(chart, "mousedown", 300, 100); mouse(chart, "mousemove", 600, 100); mouse(chart, "mouseup", 600, 100);
seen.push(view.from > 0 && view.to < points - 1 ? "zoomed" : "not zoomed");
byId("topeak").click(); byId("whole").click(); byId("clock").click();
document.querySelector("[value=owner]").click();
mouse(flame, "click", 20, 30);
seen.push("inside " + view.inside.join("/"));
chart.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowLeft"}));
seen.push(byId("holders").rows[0].textContent);
document.body.replaceChildren(seen.join("\n"));
</script>`

func page(t *testing.T, file string) string {
	s, err := snapshot.ReadFile(file)
	require.NoError(t, err)
	s.MergeLayers()
	d, err := s.Device(-1)
	require.NoError(t, err)
	var b bytes.Buffer
	require.NoError(t, writePage(&b, file, s, snapshot.Analyze(s, d)))
	return b.String()
}

func TestPageInABrowser(t *testing.T) {
	for _, c := range []struct {
		file string
		want []string
	}{
		{"testdata/torch/emu_record_stream.mid.pickle", []string{
			"memprof: emu_record_stream.mid.pickle",
			"Who holds 420.1 MiB after event 264, 368.1 MiB of it pending", // the cursor begins at the peak
			"reserved  2", // some hundred MiB in the middle
			"\nzoomed\n",
			"inside <module> (make_memory_snapshots.py:668)",
			"192.0 MiB", // the gathered buffers, at the top of the holders
		}},
		{"../../libtitan/snapshot/testdata/titan/tp2_record_stream.trace", []string{
			"memprof: tp2_record_stream.trace",
			"Who holds 30.9 GiB after event 2845, 2.1 GiB of it pending",
			"\nzoomed\n",
			"inside optimizer",
			"512.0 MiB", // what is pending comes first
			"einsum < layers.*.attention.wo < forward",
		}},
	} {
		t.Run(filepath.Base(c.file), func(t *testing.T) {
			body := inBrowser(t, strings.Replace(page(t, c.file), "</html>", hands+"</html>", 1))
			for _, want := range c.want {
				require.Contains(t, body, want)
			}
			require.NotContains(t, strings.SplitN(body, "\n", 4)[3], "after event 264", "a click moves the cursor")
		})
	}
}

// inBrowser is what a page leaves in its body.
func inBrowser(t *testing.T, text string) string {
	browser := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			browser = path
		}
	}
	if browser == "" {
		t.Skip("NO BROWSER: the page's script is not tested (install chromium)")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "page.html")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
	out, err := exec.CommandContext(t.Context(), browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
		"--window-size=1280,1000", "--user-data-dir="+dir, "--virtual-time-budget=2000", "--dump-dom", "file://"+path).Output()
	require.NoError(t, err)
	_, body, _ := strings.Cut(string(out), "<body>")
	return strings.ReplaceAll(strings.ReplaceAll(body, "&lt;", "<"), "&gt;", ">")
}

// The page needs nothing from outside, and no name in a snapshot can end its script.
func TestPageIsSelfContained(t *testing.T) {
	s := &snapshot.Snapshot{Owners: make([]snapshot.Owner, 1), Labels: []string{""}}
	r := snapshot.Analyze(s, &snapshot.Device{})
	r.Notes = append(r.Notes, "</script><script>alert(1)</script>")
	var b bytes.Buffer
	require.NoError(t, writePage(&b, "-", s, r))
	require.NotContains(t, b.String(), "alert(1)</script>")
	for _, outside := range []string{"http://", "https://", " src=", " href=", "@import", "url("} {
		require.NotContains(t, b.String(), outside)
	}
}
