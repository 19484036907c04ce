# How an experiment runs. Each manifest is a target: a run starts again when the bytes of its manifest have changed, and
# then alone. An experiment NAME is a file NAME.mk with the variables NAME.runs, NAME.RUN (flags of meshplan), NAME.job
# and NAME.data.
EXPERIMENTS :=
include $(filter-out %/rules.mk,$(wildcard experiments/*.mk))

EXP       := runs/experiments
EXP_TOOLS := bin/meshplan bin/pp-split bin/titan-run
# of runs/experiments/NAME/RUN.*: its experiment and its run
name = $(notdir $(patsubst %/,%,$(dir $@)))
run  = $(basename $(notdir $@))

$(EXP_TOOLS) &:
	$(GO) build -o bin/ ./tools/...

# The machine, measured once.
$(EXP)/machine.json: | $(EXP_TOOLS)
	@mkdir -p $(@D)
	bin/titan-run bench --hardware $@

define EXPERIMENT
# Planned anew when the experiment's file changes; where the bytes stay, the manifest keeps its time and its run stands.
$(EXP)/$(1)/%.planned: experiments/$(1).mk $(EXP)/machine.json | $(EXP_TOOLS)
	@mkdir -p $$(@D)
	bin/meshplan $$($(1).job) $$($(1).$$(run)) --hardware $(EXP)/machine.json \
	  | bin/pp-split \
	  | bin/meshplan estimate --hardware $(EXP)/machine.json --memory-of titan > $$@.new
	cmp -s $$@.new $$(@:.planned=.json) || cp $$@.new $$(@:.planned=.json)
	@mv $$@.new $$@

$(EXP)/$(1)/%.json: $(EXP)/$(1)/%.planned ;

$(EXP)/$(1)/%.jsonl: $(EXP)/$(1)/%.json | $(EXP_TOOLS)
	@rm -f $$@.new
	bin/titan-run -i $$< $$($(1).data) --metrics $$@.new --quiet -o /dev/null
	@mv $$@.new $$@

$(EXP)/$(1)/table.md: $($(1).runs:%=$(EXP)/$(1)/%.jsonl) experiments/compare/*.go
	$(GO) run ./experiments/compare --plot $$(@D)/plot.svg $($(1).runs:%=$(EXP)/$(1)/%.json) > $$@.new
	@mv $$@.new $$@
	@cat $$@
	@echo "plot: $$(@D)/plot.svg" >&2

experiment: $(EXP)/$(1)/table.md
endef
$(foreach e,$(EXPERIMENTS),$(eval $(call EXPERIMENT,$(e))))

.PHONY: experiment
.SECONDARY: # manifests stay
.DELETE_ON_ERROR:
experiment: ## plan, run and compare every experiment of experiments/; only what changed runs again
	@:
