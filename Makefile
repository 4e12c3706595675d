# Every target sets up .venv by itself the first time. `make help` lists them.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
SCALEMARK := $(BIN)/scalemark
BUDGET ?= 6m
NGPU ?=
NNODES ?= 2
NPROC := $(if $(NGPU),--nproc $(NGPU))
ARGS ?=
PYVER ?= 3.12
SECONDS ?= 600
SEED ?=
WHEELS ?= msgspec

.PHONY: help setup bench bench-single bench-dp bench-ddp bench-loader bench-syncbn bench-checkpoint report doctor test test-cluster test-long lint \
	self-bench example clean soak bench-multinode compare gpu-check gpu-wheels

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-16s %s\n", $$1, $$2}'
	@echo "  NGPU=N: device slots (accelerators where there are any, else CPU ranks); ARGS='...': options of scalemark run"

setup: $(STAMP) ## make .venv and install everything, pinned (BRING_TORCH=1: keep the torch that PYTHON has)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "scalemark needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version 2>&1): make setup PYTHON=python3.11"; exit 2; }
	$(PYTHON) -m venv $(if $(BRING_TORCH),--system-site-packages) $(VENV)
	@if [ -n "$(BRING_TORCH)" ]; then \
		$(BIN)/python -c 'import torch; v = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])); assert v >= (2, 9), v' || \
		{ echo "BRING_TORCH: $(PYTHON) has no torch 2.9 or later"; exit 2; }; \
		grep -vE '^(torch|triton|nvidia-(cu|nc|nv)[a-z0-9-]*)==' constraints.txt > $(VENV)/constraints.txt; \
	else cp constraints.txt $(VENV)/constraints.txt; fi
	$(BIN)/pip install --quiet --disable-pip-version-check -c $(VENV)/constraints.txt -e '.[dev]'
	@touch $@

bench: $(STAMP) ## the default suite for this host, then the report
	$(SCALEMARK) run default --nodes $(NNODES) --budget $(BUDGET) $(NPROC) $(ARGS); code=$$?; \
		[ $$code = 2 ] || $(SCALEMARK) report; exit $$code

bench-single: $(STAMP) ## one device, on every data source that applies
	$(SCALEMARK) run single $(ARGS)

bench-dp: $(STAMP) ## DataParallel on 1, 2, 4, ... NGPU devices against one
	$(SCALEMARK) run dp $(NPROC) $(ARGS)

bench-ddp: $(STAMP) ## DDP on 1, 2, 4, ... NGPU ranks against one device
	$(SCALEMARK) run ddp $(NPROC) $(ARGS)

bench-loader: $(STAMP) ## num_workers with pin_memory off and on
	$(SCALEMARK) run loader $(ARGS)

bench-syncbn: $(STAMP) ## DDP with and without SyncBN
	$(SCALEMARK) run syncbn $(NPROC) $(ARGS)

bench-checkpoint: $(STAMP) ## save and load under every strategy: time, bytes, memory, equality, the classic mistakes
	$(SCALEMARK) checkpoint --nodes $(NNODES) $(NPROC) $(ARGS)

report: $(STAMP) ## the scaling report in HTML (STUDY=results/NAME; default: the newest study)
	$(SCALEMARK) report $(STUDY)

doctor: $(STAMP) ## what this host offers, and what will bite
	$(SCALEMARK) doctor

test: $(STAMP) ## all tests, two files at a time
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-cluster: $(STAMP) ## the longer set on the cluster in a box, as root (see CONTRIBUTING.md)
	$(BIN)/python -m pytest tests/cluster tests/e2e/test_nodes.py -m 'cluster or cluster_long' -rs --timeout=900

test-long: $(STAMP) ## the longer tests of everything else
	$(BIN)/python -m pytest -m long -rs --timeout=900

soak: $(STAMP) ## random kills of real runs and nonsense for the command line (SECONDS=600 SEED=1 ARGS=--write)
	$(BIN)/python -m tests.soak.soak --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

lint: $(STAMP) ## formatting, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

self-bench: $(STAMP) ## what the suite itself costs: overhead, truth, launch and report times
	$(BIN)/python -m pytest tests/self_bench -m self_bench --benchmark-only -s --timeout=1800

example: $(STAMP) ## remake results/example and reports/example.html from a real run
	rm -rf results/example
	$(SCALEMARK) run default --nodes $(NNODES) --budget $(BUDGET) -o results/example
	$(SCALEMARK) report results/example -o reports/example.html

bench-multinode: $(STAMP) ## DDP over 1, 2, ... NNODES nodes as agents on this machine (LINK=100mbit: shaped, as root)
	$(SCALEMARK) run multinode --nodes $(NNODES) $(if $(LINK),--link $(LINK)) $(NPROC) $(ARGS)

compare: $(STAMP) ## two sides, a verdict a cell (BASE=results/A NEW=results/B; or A1,A2,A3 and B1,B2,B3)
	@[ -n "$(BASE)" ] || { echo "compare: name two sides: make compare BASE=results/before NEW=results/after"; exit 2; }
	$(SCALEMARK) compare $(BASE) $(NEW) $(ARGS)

gpu-check: ## everything that needs a GPU, in four minutes; says so where there is none (PYTHON: one with torch)
	@$(PYTHON) tests/gpu/check.py

gpu-wheels: ## for gpu-check on a machine without a network: small wheels into .wheels (PYVER=3.12)
	$(PYTHON) -m pip download --quiet --no-deps --only-binary=:all: --python-version $(PYVER) --implementation cp \
		$(foreach n,28 27 17,--platform manylinux_2_$(n)_x86_64) --platform manylinux2014_x86_64 -d .wheels $(WHEELS)

clean: ## remove .venv and caches; results and reports stay
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks
	find bench tests -name __pycache__ -prune -exec rm -rf {} +
