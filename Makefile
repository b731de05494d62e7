# Every target works on a fresh machine: the first one run makes .venv with pinned dependencies.
# To use an environment of your own, name its interpreter: make test PYTHON=python3

# Another PyTorch than the pinned one has an environment beside it: make test TORCH=2.15.0

SYSTEM_PYTHON ?= python3
PINNED := $(shell sed -n 's/^torch==//p' requirements-dev.txt)
TORCH ?= $(PINNED)
VENV := .venv$(if $(filter-out $(PINNED),$(TORCH)),-$(TORCH))
PYTHON ?= $(VENV)/bin/python
# Test files, and problems of the zoo, side by side.
JOBS ?= 2
TESTS ?= tests

LOCK := $(shell cat requirements-dev.txt pyproject.toml | cksum | tr -d ' ')
READY := $(if $(filter $(VENV)/bin/python,$(PYTHON)),$(VENV)/ready-$(LOCK))

DEMO = examples/swish_bias_groupnorm.py
DEMO_SET = batch_size=64

.PHONY: demo test unit zoo check fix golden sizes bench lock
.DEFAULT_GOAL := test

demo: $(READY)
	@mkdir -p out
	$(PYTHON) -m fusewright optimize $(DEMO) --set $(DEMO_SET) --target cpu \
		--output out/swish_bias_groupnorm.py --report out/swish_bias_groupnorm.json --force

# Two processes on two cores: a thread that waits for others sleeps, or it keeps them from working.
test zoo: export OMP_WAIT_POLICY = passive

test: $(READY)
	$(PYTHON) -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder $(TESTS)
	$(if $(filter tests,$(TESTS)),$(MAKE) zoo)

# Tests that need no compiler, no GPU and no judge, and not long: those of each package.
UNIT = not gpu and not compiler and not judged and not slow
ELSEWHERE = compile emulated fuzz gpu judge
unit: $(READY)
	$(PYTHON) -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder --without-compilers \
		-m "$(UNIT)" $(ELSEWHERE:%=--ignore=tests/%) tests

# Every problem of zoo/ through the whole judge, on the CPU; an error unless all are verified.
zoo: $(READY)
	$(PYTHON) -m fusewright suite zoo --target cpu --no-timing --jobs $(JOBS) --output out/zoo

check: $(READY)
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) -m pytest -q tests/architecture
	$(PYTHON) tools/code_size.py

fix: $(READY)
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

golden: $(READY)
	$(PYTHON) -m pytest -q --update-golden $(TESTS)

# Files, lines of code and lines of each package.
sizes: $(READY)
	$(PYTHON) tools/code_size.py --packages

bench: $(READY)
	@set -e; for script in bench/*.py; do $(PYTHON) $$script; done

lock:
	$(SYSTEM_PYTHON) tools/lock.py $(TORCH)

$(VENV)/ready-$(LOCK): | requirements-dev.txt pyproject.toml tools/install.py
	$(SYSTEM_PYTHON) tools/install.py $(VENV) $(TORCH)
	@rm -f $(VENV)/ready-*
	@touch $@
