# make help lists what there is.
GO      ?= go
TOOLS   := meshplan pp-split seedinit ckpt-shard titan-run memprof
FUZZ    ?= 60s
RUN     ?= runs/first
CORPUS  := $(shell $(GO) env GOROOT)/src

# go-nvml's header warns of its own deprecated names.
export CGO_CFLAGS ?= -O2 -Wno-deprecated-declarations

.DEFAULT_GOAL := help
.PHONY: help build run test lint golden fuzz matrix gpu bench man clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-10s %s\n", $$1, $$2}'

build: ## build the six tools into bin/
	$(GO) build -o bin/ ./tools/...

run: build ## train a small Llama on the Go standard library's sources, in two pipeline stages
	@rm -rf $(RUN)
	@mkdir -p $(RUN)
	bin/meshplan --model llama3 --dim 128 --layers 4 --heads 4 --kv-heads 4 --ffn 384 --vocab 258 --pp 2 \
	    --seq-len 128 --local-batch-size 8 --microbatches 2 --steps 700 --warmup-steps 20 --lr 3e-3 \
	  | bin/pp-split --schedule 1F1B \
	  | bin/seedinit --out $(RUN)/seed -o $(RUN)/job.json
# Interrupted with Ctrl-C, training has saved its last step: the next line, typed again, goes on from there.
	bin/titan-run -i $(RUN)/job.json --data '$(CORPUS)/**/*.go' --exclude testdata --exclude strings --log-freq 20 \
	    --checkpoint-dir $(RUN)/ckpt --metrics $(RUN)/metrics.jsonl -o $(RUN)/manifest.json
	bin/titan-run eval -i $(RUN)/manifest.json --data '$(CORPUS)/strings/**/*.go' --exclude testdata --batches 80

test: lint ## run every test (no GPU needed)
	$(GO) test ./...

lint: ## gofmt, vet, staticcheck
	@test -z "$$(gofmt -l libtitan tools bench experiments)" || { gofmt -d libtitan tools bench experiments; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

golden: ## rewrite the golden parts of the scripts
	$(GO) test $(addprefix ./tools/,$(TOOLS)) -u

fuzz: ## run every fuzz target for FUZZ (60s)
	@for pkg in $$($(GO) list ./libtitan/... ./tools/...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
	    echo "$$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZ) $$pkg || exit 1; \
	  done; \
	done

matrix: ## train on every mesh of up to 8 ranks, with every option, against one rank
	TITAN_MATRIX=1 $(GO) test -timeout 30m -count 1 -v ./libtitan/train | grep -vE '^ +--- PASS|=== '

gpu: ## all that needs GPUs: tests, meshes, speed beside PEER (see bench/gpu.sh; bench/gpu_three.sh for 4 or 8)
	BUDGET=$${BUDGET:-3600} bench/gpu.sh "" "$(PEER)"

bench: ## tokens a second of the debugmodel on this CPU, beside PEER (see bench/cpu.sh)
	bench/cpu.sh "$(PEER)"

man: build ## write man pages into bin/man/
	@mkdir -p bin/man
	@for t in $(TOOLS); do bin/$$t man > bin/man/$$t.1; done
	@echo "bin/man has $(TOOLS:%=%.1): read one with man bin/man/titan-run.1"

include experiments/rules.mk

clean: ## remove what was built and run
	rm -rf bin runs
