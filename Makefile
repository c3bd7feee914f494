# Everything a contributor types. Needs make and a Python of 3.11 or newer, nothing else.
#
# All paths are relative, so that a checkout may live in a folder with spaces in its name, and only features
# of GNU make 3.81 are used, which is what macOS ships.

# Which Python makes the virtual environment; empty = the first suitable one found.
PYTHON ?=
# Handed on to the command that the target runs: make run ARGS="--port 9000"
ARGS :=
# Processes that share the test suite; 0 runs it in this one. Tests also wait, so there may be more than cores.
TEST_PROCESSES ?= 3

VENV_PYTHON := .venv/bin/python
PIP := $(VENV_PYTHON) -m pip --disable-pip-version-check --quiet
# The client is installed from the tree, as the server is: what it needs is locked, itself is not.
COMPILE_LOCK := $(VENV_PYTHON) -m uv pip compile pyproject.toml --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-emit-package foreman-client --no-header --no-annotate --quiet

.DEFAULT_GOAL := help
# Targets share one environment: two installs into it at once would spoil it.
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help setup run test screenshots lint audit format build chaos openapi bench bench-growth bench-dashboard bench-report bench-smoke lock clean

help: ## List the targets
	@echo "Usage: make <target> [ARGS=\"…\"]"
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)$$/\1|\2/p' Makefile \
		| while IFS='|' read -r target text; do printf '  %-12s %s\n' "$$target" "$$text"; done

setup: .venv/.ready-dev ## Make .venv with everything needed to work on the project
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
		echo "No Chromium: tests of the dashboard in a browser will be skipped (Debian, Ubuntu: apt install chromium)."
	@echo "Ready: .venv has the server, its tests and its tools. Next: make run, make test."

run: .venv/.ready ## Serve on this machine, with a PostgreSQL of its own in ./.foreman
	@exec .venv/bin/foreman serve $(ARGS)

test: .venv/.ready-dev ## Run the tests (ARGS="-k word", TEST_PROCESSES=3)
	@$(VENV_PYTHON) -m pytest -n $(TEST_PROCESSES) --dist worksteal $(ARGS)

screenshots: .venv/.ready-dev ## Take the pictures of docs/dashboard.md anew (needs Chromium)
	@$(VENV_PYTHON) -m tests.browser.screenshots

chaos: .venv/.ready-dev ## Break it on purpose, and print the score (20 minutes; ARGS="--seed 7", --help)
	@$(VENV_PYTHON) -m tests.chaos $(ARGS)

lint: .venv/.ready-dev ## Check style, format, types and the direction of imports
	@$(VENV_PYTHON) -m ruff check .
	@$(VENV_PYTHON) -m ruff format --check .
	@$(VENV_PYTHON) -m mypy
	@.venv/bin/lint-imports --no-logo

audit: .venv/.ready-dev ## Look for known vulnerabilities of what is locked, and for our own (ARGS=--offline)
	@$(VENV_PYTHON) .ci/audit.py $(ARGS)

format: .venv/.ready-dev ## Format the code and mend what can be mended safely
	@$(VENV_PYTHON) -m ruff check --fix .
	@$(VENV_PYTHON) -m ruff format .

# Without isolation: the tools that build are in the environment, and nothing is fetched.
build: .venv/.ready ## Make the wheels and source archives of server and client, in dist/
	@rm -rf dist
	@$(VENV_PYTHON) -m hatchling build -d dist
	@cd client && ../$(VENV_PYTHON) -m hatchling build -d ../dist

openapi: .venv/.ready ## Write openapi/openapi.json from the code
	@$(VENV_PYTHON) -m app.openapi

bench: .venv/.ready ## Measure against a bare server and other queues, as ratios
	@$(VENV_PYTHON) -m benchmarks $(ARGS)

bench-growth: .venv/.ready ## Is it as fast with 10 million finished jobs? (ARGS="--quick")
	@$(VENV_PYTHON) -m benchmarks.growth $(ARGS)

bench-dashboard: .venv/.ready ## What does the dashboard cost over a million jobs, and fifty of them? (ARGS="--quick")
	@$(VENV_PYTHON) -m benchmarks.dashboard $(ARGS)

bench-report: .venv/.ready ## Write the last results of both into docs/benchmarks.md, with plots
	@$(VENV_PYTHON) -m benchmarks.document $(ARGS)

bench-smoke: .venv/.ready ## Do the benchmarks still run? Small, and their numbers mean nothing
	@$(VENV_PYTHON) -m benchmarks.smoke $(ARGS)

lock: .venv/.ready-dev ## Bring the lock files up to pyproject.toml (ARGS=--upgrade for newest versions)
	@$(COMPILE_LOCK) $(ARGS) --group build -o requirements.lock
	@$(COMPILE_LOCK) $(ARGS) --group build --group dev -o requirements-dev.lock

clean: ## Remove environments, caches and builds; the data in ./.foreman stays
	@rm -rf .venv benchmarks/.venvs dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis \
		.import_linter_cache
	@find . -name __pycache__ -type d -not -path './.foreman/*' -prune -exec rm -rf {} +

# --- the environment ---------------------------------------------------------------------------------------
# Two stamps say what .venv holds; each is renewed when its lock or a pyproject.toml is newer. Versions are equal
# in both lock files, so whoever has the tools has the server too.

INSTALL_OURS := $(PIP) install --no-deps --no-build-isolation -e ./client -e .

.venv/.ready: .venv/pyvenv.cfg requirements.lock pyproject.toml client/pyproject.toml
	@echo "Installing the server into .venv (a minute, the first time) …"
	@$(PIP) install --require-hashes -r requirements.lock
	@$(INSTALL_OURS)
	@touch $@

.venv/.ready-dev: .venv/pyvenv.cfg requirements-dev.lock pyproject.toml client/pyproject.toml
	@echo "Installing the server and its tools into .venv (a minute, the first time) …"
	@$(PIP) install --require-hashes -r requirements-dev.lock
	@$(INSTALL_OURS)
	@touch .venv/.ready $@

# The scripts in an environment name its folder: one that came from another place (a moved or copied checkout),
# or whose Python is gone or too old, is made anew.
# (HASH, because make 3.81 and 4.3 disagree on how a number sign is written inside a function.)
HASH := \#
SUITABLE := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
VENV_IS_OURS := $(shell .venv/bin/python -c '$(SUITABLE)' 2>/dev/null \
	&& here="$$(pwd -P)/.venv/bin/" \
	&& head -n 3 .venv/bin/pip | grep -q -F -e "$(HASH)!$$here" -e " $$here" -e "\"$$here" && echo yes)
ifneq ($(VENV_IS_OURS),yes)
.PHONY: .venv/pyvenv.cfg
endif

.venv/pyvenv.cfg:
	@found=; for python in $(if $(PYTHON),"$(PYTHON)",python3.13 python3.12 python3.11 python3); do \
		if "$$python" -c '$(SUITABLE)' 2>/dev/null; then found="$$python"; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
		echo "Foreman needs Python 3.11 or newer with its venv module$(if $(PYTHON),; $(PYTHON) is not that)." >&2; \
		echo "Install one (Debian, Ubuntu: apt install python3 python3-venv) or name it: make PYTHON=/path/to/python3" >&2; \
		exit 1; \
	fi; \
	echo "Making .venv with $$("$$found" --version) …"; \
	rm -rf .venv && "$$found" -m venv .venv
