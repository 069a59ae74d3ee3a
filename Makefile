# `make` lists the targets. To use another interpreter: make test PYTHON=/path/to/python3.11

PYTHON ?= python3.11
VERIFY_ARGS ?=
CHECK_ARGS ?=
PYTEST_ARGS ?=
PYTEST_WORKERS ?= 2

# Installed before the lock and with its dependencies: which build it is differs from machine to machine.
TORCH := torch==2.13.0
BIN := .venv/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
INSTALLED := .venv/.installed

# Where pip finds packages is the user's choice; options that send them elsewhere or change what is
# installed would break the environment.
unexport PIP_USER PIP_TARGET PIP_PREFIX PIP_ROOT PIP_PYTHON PIP_REQUIREMENT PIP_EDITABLE PIP_CONSTRAINT
unexport PIP_NO_DEPS PIP_DRY_RUN PIP_REQUIRE_HASHES PIP_IGNORE_INSTALLED PIP_UPGRADE PIP_PRE PIP_NO_BINARY

.DEFAULT_GOAL := help
.PHONY: help env verify check test lint clean python-version

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' Makefile
	@echo
	@echo "Variables: PYTHON=python3.11  VERIFY_ARGS='...'  CHECK_ARGS='...'  PYTEST_ARGS='...'  PYTEST_WORKERS=2"

env: $(INSTALLED) ## Make .venv from the lock (about two minutes, once)

verify: $(INSTALLED) ## Run `vtoken verify $(VERIFY_ARGS)`
	$(BIN)/vtoken verify $(VERIFY_ARGS)

check: $(INSTALLED) ## Run `vtoken check $(CHECK_ARGS)`: is the spec itself right?
	$(BIN)/vtoken check $(CHECK_ARGS)

lint: $(INSTALLED) ## Check style, format, types and layering
	@echo "== ruff check"
	$(BIN)/ruff check
	@echo "== ruff format"
	$(BIN)/ruff format --check
	@echo "== mypy"
	$(BIN)/mypy
	@echo "== import-linter"
	$(BIN)/lint-imports --no-logo

# loadfile: a module's tests share one started engine, so they stay on one worker.
# One OpenMP thread each: the workers share the cores.
test: lint ## Lint, then run the tests
	@echo "== pytest"
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/pytest -n $(PYTEST_WORKERS) --dist loadfile $(PYTEST_ARGS)

clean: ## Remove .venv, build outputs and caches
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml requirements/cpu.txt | python-version
	@echo "== .venv"
	$(PYTHON) -m venv .venv
	@echo "== packages (about two minutes the first time)"
	$(PIP_INSTALL) $(TORCH)
	$(PIP_INSTALL) --no-deps -r requirements/cpu.txt
	$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

python-version:
	@command -v $(PYTHON) >/dev/null || \
	  { echo "vToken needs Python 3.11 or newer and finds no $(PYTHON): install it, or run make with PYTHON=/path/to/python." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "vToken needs Python 3.11 or newer and $(PYTHON) is older: run make with PYTHON=/path/to/python." >&2; exit 1; }
