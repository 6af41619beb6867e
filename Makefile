# Every command of the project; `make` alone lists them.
# Variables can be set on the command line: make quickstart SEED=1 OUT=runs/mine

PYTHON ?= python3
VENV ?= .venv
SEED ?= 0
SEEDS ?= 0 1 2
OUT ?= runs/quickstart
# Further arguments of pytest or of the benchmark: make test ARGS="-k metrics"
ARGS ?=
# `make lock` moves every other pin to its newest release; torch moves only when this line does, since measured speeds
# and bit-identical losses hold for one torch.
TORCH ?= 2.13.0

PY := "$(VENV)/bin/python"
PIP := -m pip --disable-pip-version-check --no-input
# The stamp is a copy of the lock, so that a test can tell which lock an environment was made from.
STAMP := $(VENV)/requirements.lock
# worksteal keeps a test file on one worker, and with it the file's fixtures, until the other worker runs out of work.
PYTEST := -m pytest -n 2 --dist worksteal

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help env test test-slow lint format lock quickstart seeds benchmark clean

help: ## list these commands
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

env: $(STAMP) ## create the environment from requirements.lock (VENV, default .venv)

define check_python
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	echo 'loopformer needs Python 3.11 or newer; "$(PYTHON)" is not. Name one: make env PYTHON=python3.12' >&2; exit 1; }
endef

$(STAMP): requirements.lock pyproject.toml
	$(check_python)
	@echo 'Installing requirements.lock into $(VENV): about a minute, more where torch comes with CUDA ...'
	@$(PYTHON) -m venv "$(VENV)"
	@$(PY) $(PIP) install -q -r requirements.lock
	@$(PY) $(PIP) install -q --no-deps -e .
	@$(PY) $(PIP) check
	@cp requirements.lock "$@"

test: $(STAMP) ## run the fast tests on two workers (minutes)
	$(PY) $(PYTEST) -m "not slow" $(ARGS)

# Exit status 5 is pytest's "nothing selected": with ARGS="-k name" often no slow test is left, which is no failure.
test-slow: $(STAMP) ## run the slow tests on two workers
	$(PY) $(PYTEST) -m slow --timeout 1200 $(ARGS) || [ $$? -eq 5 ]

# All four run even when one fails: one look shows everything there is to mend.
lint: $(STAMP) ## check style, format, types and which package may import which
	@status=0; \
	run() { echo "$$*"; "$$@" || status=1; }; \
	run $(PY) -m ruff check .; \
	run $(PY) -m ruff format --check .; \
	run $(PY) -m mypy; \
	run "$(VENV)/bin/lint-imports" --no-logo; \
	exit $$status

format: $(STAMP) ## format the code and mend what ruff can
	$(PY) -m ruff check --fix --exit-zero .
	$(PY) -m ruff format .

# Left out of the lock: the project itself, local version suffixes such as +cpu, and the CUDA packages that only some
# builds of torch ask for.
lock: ## write requirements.lock anew from pyproject.toml
	$(check_python)
	@echo 'Resolving pyproject.toml in a fresh environment: a minute or two ...'
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && \
	$(PYTHON) -m venv "$$tmp/venv" && \
	"$$tmp/venv/bin/python" $(PIP) install -q -e '.[dev]' torch==$(TORCH) && \
	"$$tmp/venv/bin/python" $(PIP) freeze --exclude-editable > "$$tmp/freeze" && \
	{ sed -n '/^#/p' requirements.lock; \
	  sed -E -e '/^(nvidia|cuda|triton)/d' -e 's/\+[A-Za-z0-9.]+$$//' "$$tmp/freeze"; } > "$$tmp/lock" && \
	cp "$$tmp/lock" requirements.lock

quickstart: $(STAMP) ## train, fit the timer and evaluate on two CPU cores (SEED, OUT)
	$(PY) -m loopformer.quickstart --seed $(SEED) --output "$(OUT)"

seeds: $(STAMP) ## the quickstart for several seeds (SEEDS, OUT)
	$(PY) -m loopformer.quickstart --seed $(SEEDS) --output "$(OUT)"

benchmark: $(STAMP) ## measure speed (ARGS)
	$(PY) -m benchmarks.speed $(ARGS)

clean: ## remove caches and build leftovers; keeps runs/ and the environment
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
