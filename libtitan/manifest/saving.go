package manifest

import "slices"

// The words of checkpoint.async_mode.
const (
	AsyncOff    = "disabled"
	AsyncThread = "async"
	AsyncPinned = "async_with_pinned_mem"
)

// Async reports whether a step is saved while the next ones are computed.
func (c *Checkpoint) Async() bool { return c.AsyncMode == AsyncThread || c.AsyncMode == AsyncPinned }

// Excludes reports whether a resumed run begins with part afresh.
func (c *Checkpoint) Excludes(part string) bool { return slices.Contains(c.ExcludeFromLoading, part) }

// checkSaving holds torchtitan's rules between the fields of the checkpoint section.
func (m *Manifest) checkSaving(p *problems) {
	c := m.Checkpoint
	if c == nil {
		return
	}
	for _, f := range []struct{ field, path string }{{"folder", c.Folder}, {"initial_load_path", c.InitialLoadPath}} {
		if f.path == "-" {
			p.add("checkpoint.%s is -: a folder is wanted, which is no stream (./- if it is called so)", f.field)
		}
	}
	if c.KeepLatestK == 1 {
		p.add("checkpoint.keep_latest_k is 1: the one checkpoint would be the one that is being replaced: keep at least 2, or 0 for all")
	}
	if c.LastSaveInHF && !c.LastSaveModelOnly {
		p.add("checkpoint.last_save_in_hf needs checkpoint.last_save_model_only: Hugging Face's form has no place for an optimizer")
	}
	if c.ExportDType != "" && !c.LastSaveModelOnly {
		p.add("checkpoint.export_dtype has no meaning without checkpoint.last_save_model_only: a state to go on from keeps its dtypes")
	}
	if c.InitialLoadInHF && c.InitialLoadPath == "" {
		p.add("checkpoint.initial_load_in_hf has no meaning without checkpoint.initial_load_path")
	}
	if c.Excludes("optimizer") && !c.Excludes("lr_scheduler") {
		p.add("checkpoint.exclude_from_loading: optimizer without lr_scheduler: fresh moments need the warm-up again, so exclude both")
	}
}
