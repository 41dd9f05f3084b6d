# Two commands on a fresh machine: `make chat` and `make test`. Both make .venv, pinned packages and
# the embedded models once, and work offline ever after. What they do is told on stderr.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
PYTEST_ARGS ?=
WORKERS ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
SAY := printf '%s\n' 1>&2
# Nothing is looked up at the hub: the models come from wheels.
export HF_HUB_OFFLINE := 1
export TRANSFORMERS_OFFLINE := 1

NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
HAVE_MODELS := from agentmem.models.setup import model_dir; model_dir("smollm2"); model_dir("minilm")

.DEFAULT_GOAL := help
.PHONY: help chat test slow setup models lint format lock clean
.DELETE_ON_ERROR:

help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' Makefile

chat: models ## Install what is missing, then chat. ARGS='--budget 1024' passes options.
	@$(BIN)/agentmem chat $(ARGS)

test: $(VENV)/.test models ## Install what is missing, then lint, check types and run all tests.
	@$(MAKE) --no-print-directory lint
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -n $(WORKERS) --dist loadfile $(PYTEST_ARGS)

slow: $(VENV)/.test models ## Run the tests that take minutes: speed, as ratios within one run.
	@$(BIN)/python -m pytest -m slow -s $(PYTEST_ARGS)

setup: $(VENV)/.base ## Fetch and convert the embedded models.
	@$(BIN)/agentmem setup 1>&2

lint: $(VENV)/.test ## Check style, format and types.
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(VENV)/.test ## Format the code and mend what the linter can.
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean: ## Remove .venv and what tools leave; models and data stay.
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

lock: $(VENV)/.base ## Pin requirements/*.txt anew from requirements/*.in.
	@$(BIN)/python requirements/lock.py

models: $(VENV)/.base
	@$(BIN)/python -c '$(HAVE_MODELS)' 2>/dev/null || $(BIN)/agentmem setup 1>&2

$(BIN)/python:
	@for python in "$(PYTHON)" python3.13 python3.12 python3.11; do \
	  if "$$python" -c '$(NEW_ENOUGH)' 2>/dev/null; then \
	    $(SAY) "agentmem: making $(VENV) with $$("$$python" --version)"; \
	    "$$python" -m venv $(VENV) 1>&2 && exit 0; \
	    rm -rf $(VENV); \
	    $(SAY) "agentmem: $$python lacks the venv module (on Debian: apt-get install python3-venv)"; \
	    exit 1; \
	  fi; \
	done; \
	$(SAY) "agentmem needs Python 3.11 or newer: $(PYTHON) is $$("$(PYTHON)" --version 2>&1);" \
	  "name another with make PYTHON=/path/to/python3.12"; \
	exit 1

$(VENV)/.base: requirements/torch.txt requirements/base.txt pyproject.toml | $(BIN)/python
	@$(SAY) "agentmem: installing torch (200 MB to download on a CPU machine, 750 MB on disk) ..."
	@$(PIP) install --quiet --requirement requirements/torch.txt 1>&2
	@$(SAY) "agentmem: installing the other packages (150 MB to download, 600 MB on disk) ..."
	@$(PIP) install --quiet --no-deps --require-hashes --requirement requirements/base.txt 1>&2
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable . 1>&2
	@touch $@

$(VENV)/.test: requirements/test.txt $(VENV)/.base
	@$(SAY) "agentmem: installing what the tests need (350 MB to download) ..."
	@$(PIP) install --quiet --no-deps --require-hashes --requirement requirements/test.txt 1>&2
	@touch $@
