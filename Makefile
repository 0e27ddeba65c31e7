# `make demo` and `make test` work on a fresh checkout with nothing but Python 3.11 and make.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Where the CPU build of torch is found when the configured package index does not have it.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
# One process a core, each with one thread; a file's tests stay together, since they share what they set up.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder
PIP_INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints/cpu.txt

# Builds and checks what is released; small, and apart from the environment in which the package is tested.
DIST_VENV := $(VENV)-dist
DIST ?= dist
# The interpreters with which `make check-dist` tries the wheel.
PYTHONS ?= $(PYTHON)

.PHONY: demo bench docs test check nightly format dist check-dist clean

demo: $(VENV)/.demo
	$(BIN)/discopatch demo

bench: $(VENV)/.bench $(VENV)/.solar
	$(BIN)/discopatch data fetch resnet50 efficientnet-lite0
	$(BIN)/discopatch bench --suite solar --quick --out runs/solar-quick

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build
	@echo "the site: build/site/index.html"

test: $(VENV)/.dev
	$(PYTEST) -m "not slow and not nightly"

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST) -m "not nightly"

nightly: $(VENV)/.dev
	$(PYTEST)

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

dist: $(DIST_VENV)/.ready
	rm -rf '$(DIST)'
	$(DIST_VENV)/bin/python -m build --outdir '$(DIST)'
	$(DIST_VENV)/bin/python -m twine check --strict '$(DIST)'/*

check-dist: dist $(VENV)/.dev
	DISCOPATCH_WHEELS='$(abspath $(DIST))' DISCOPATCH_PYTHONS='$(PYTHONS)' \
	  $(BIN)/python -m pytest tests/release/test_installed.py

clean:
	rm -rf $(VENV) $(DIST_VENV) build dist demo-run

$(BIN)/python:
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "discopatch needs Python 3.11 or newer: make PYTHON=python3.11"'
	$(PYTHON) -m venv $(VENV)

# One marker file for each set of extras, so that `make demo` does not install the test tools.
$(VENV)/.%: $(BIN)/python pyproject.toml constraints/cpu.txt
	@echo "installing discopatch[$*] into $(VENV) (a few minutes, once)"
	@$(PIP_INSTALL) --editable '.[$*]' \
	  || $(PIP_INSTALL) --extra-index-url $(TORCH_CPU_INDEX) --editable '.[$*]'
	@touch $@

$(DIST_VENV)/.ready: Makefile
	$(PYTHON) -m venv $(DIST_VENV)
	@$(DIST_VENV)/bin/python -m pip install --quiet 'build>=1.2,<2' 'twine>=6.1'
	@touch $@
