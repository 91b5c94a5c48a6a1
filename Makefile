# Every target does its own set-up, from nothing, and may be run again at no cost.
PYTHON ?= python3
# The tests start hundreds of interpreters; without bytecode each compiles everything again.
unexport PYTHONDONTWRITEBYTECODE
# What is given as PYTHON=... is for make alone: tests compare the variables that an interpreter reads.
unexport PYTHON

VENV := .venv
BIN := $(VENV)/bin
SETUP := $(VENV)/.ready
# The demo needs less than the tests: it installs its own set only where theirs is not there.
DEMO_SETUP := $(if $(wildcard $(SETUP)),$(SETUP),$(VENV)/.ready-demo)

.PHONY: test lint types unit matrix wheel coverage compat record fault soak clusters frameworks etcd demo bench scale versions fuzz sim planted dist docs release clean

# All three at once; each says what it found when it ends, and all are heard before this one fails.
test: $(SETUP)
	$(MAKE) --no-print-directory --keep-going -j3 lint types unit

lint: $(SETUP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(SETUP)
	$(BIN)/mypy

# Most tests wait for processes rather than compute: more of them than cores. tests/conftest.py puts
# the files in order.
unit: $(SETUP)
	-tools/install_etcd.sh
	-tools/install_slurm.sh
	-tools/install_sshd.sh
	$(BIN)/python -m pytest --workers 12 -rsfE -m "not (fault or clusters or frameworks or bench) or quick"

# The tests on each Python from 3.11 to 3.14 that is found, and a job with the wheel; says which were
# not found.
matrix: wheel
	$(PYTHON) tools/matrix.py

# The wheel, its files, and a job of two nodes through a kill with it on each Python that is found.
wheel: $(VENV)/.ready-build
	$(PYTHON) -m tools.wheel_job --files

# A report, not a gate: a failing test does not keep it from being printed.
coverage: $(VENV)/.ready-coverage
	rm -rf .coverage-data
	mkdir .coverage-data
	-$(BIN)/coverage run -m pytest --workers 3 --agents=executed -m "not (fault or clusters or frameworks or bench) or quick"
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage html --quiet
	$(BIN)/coverage report

# An sdist and a wheel, in dist/.
dist: $(VENV)/.ready-build
	$(BIN)/python -m build

# The files of a release in dist/: sdist, wheel, checksums, an SBOM, notes. Nothing is uploaded.
# make release DRY=1 does so with a tree that is not ready.
release: $(VENV)/.ready-build
	$(BIN)/python -m tools.release $(if $(DRY),--dry-run)

# The site of the documentation, in site/: search, an API reference, each page also as .md, llms.txt.
# A link that leads nowhere and a public name without a docstring fail it. SITE_URL is where it will be.
# If tools/install_chromium.sh was run, the site is looked at in Chromium: pictures in site-pictures/.
docs: $(VENV)/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/mkdocs build --quiet
	$(VENV)/docs/bin/python -m tools.look_at_site

# What the real torch and torchrun say, without the recordings: every program imports torch itself.
# make compat TORCH=2.14.1 does so with that torch, in an environment of its own.
compat: $(SETUP)
ifdef TORCH
	$(BIN)/python tools/other_torch.py $(TORCH)
else
	$(BIN)/python -m pytest --workers 3 -rsfE --torch=real tests/compat
endif

# Writes the recordings anew, of the torch that is installed.
record: $(SETUP)
	rm -rf tests/compat/recorded
	$(BIN)/python -m pytest --torch=record tests/compat

# Jobs on networks that fail: needs root and network namespaces, else each test says why it is skipped.
# RUNS=100 adds so many seeded jobs by a shared directory, each with a fault in one of their states,
# and a line for each to leader-runs.txt. With 135 it is 128 of the 135 pairs of a fault and a state.
# BACKEND=etcd: by an etcd of three members, with its faults; 99 runs have each pair once.
# BACKEND=kubernetes: by a stand-in of an API server, with its faults; 117 runs are 111 of the 117 pairs.
RUNS ?= 0
BACKEND ?= file
fault: $(SETUP)
	$(BIN)/python -m pytest --workers 3 -rsfE -m fault
	if [ $(RUNS) -gt 0 ]; then $(BIN)/python -m tests.fault.leader_runs --backend $(BACKEND) --at-once 3 \
		--table leader-runs.txt 0 $$(($(RUNS) - 1)); fi

# Real jobs of two to six agents under random events, bad nodes among them, with a check after each:
# no job ends wrongly, no world is wrong, nothing remains. Needs root and network namespaces. A line
# for each event goes to soak-BACKEND-SEED.jsonl; the same command goes on there, and MINUTES is the
# sum. Ends with a table, also on Ctrl-C, and with 1 if a rule was broken.
# make soak MINUTES=30 BACKEND=file|etcd|kubernetes SEED=1 [ONLY=same_id,flapping]
MINUTES ?= 30
SEED ?= 1
ONLY ?=
soak: $(SETUP)
	-if [ $(BACKEND) = etcd ]; then tools/install_etcd.sh; fi
	$(BIN)/python -m tests.fault.soak --backend $(BACKEND) --minutes $(MINUTES) --seed $(SEED) \
		--only "$(ONLY)"

# Jobs under a real Slurm, over a real sshd, in pods of network namespaces, and of 64 agents on this
# machine: needs root, else each test says why it is skipped.
clusters: $(SETUP)
	-tools/install_slurm.sh
	-tools/install_sshd.sh
	$(BIN)/python -m pytest --workers 3 -rsfE -m clusters

# Jobs and stores of real torch, of torchrun with the plug-in, and of other frameworks: the tests make
# an environment for each, in .venv/frameworks (tools/framework_env.py). The rest of the tests compare
# with what torch said once, and with its stores in their own process.
frameworks: $(SETUP)
	$(BIN)/python -m pytest --workers 3 -rsfE -m frameworks

# The tests by the etcd of another Debian: make etcd SUITE=sid
SUITE ?= trixie
etcd: $(SETUP)
	tools/install_etcd.sh $(SUITE)
	TORCHELASTIC_ETCD_BINARY_PATH=$(CURDIR)/$(VENV)/etcd-$(SUITE)/usr/bin/etcd \
		$(BIN)/python -m pytest --workers 3 -rsfE -m "not fault" -k etcd tests/etcd tests/conformance

demo: $(DEMO_SETUP)
	$(BIN)/python examples/digits/demo.py

# One coordinator with up to 10,000 nodes; takes about ten minutes and no other load.
scale: $(SETUP)
	$(BIN)/python benchmarks/scale.py

# First whether each still runs and fills its tables.
bench: $(SETUP)
	$(BIN)/python -m pytest -rsfE -m bench
	$(BIN)/python benchmarks/launch.py
	$(BIN)/python benchmarks/devices.py
	$(BIN)/python benchmarks/recovery.py
	$(BIN)/python benchmarks/takeover.py
	$(BIN)/python benchmarks/leaders.py
	$(BIN)/python benchmarks/output.py
	$(BIN)/python benchmarks/restart.py
	$(BIN)/python benchmarks/store.py
	$(BIN)/python benchmarks/rendezvous.py
	$(BIN)/python benchmarks/calls.py
	$(BIN)/python benchmarks/strangers.py
	RES_OPTIONS=attempts:0 $(BIN)/python benchmarks/torch_clients.py
	$(BIN)/python benchmarks/goodput.py

# This version beside another one: make versions OTHER=../a-checkout-of-it
versions: $(SETUP)
	$(BIN)/python benchmarks/versions.py $(OTHER)

# All side by side, until one finds something, FUZZ_SECONDS have passed, or it is stopped.
fuzz: $(VENV)/.ready-fuzz
	bash -c 'trap "kill \$$(jobs -p) 2>/dev/null" EXIT; \
	  $(BIN)/python -m tests.fuzz.fuzz_c10d & $(BIN)/python -m tests.fuzz.fuzz_values & \
	  $(BIN)/python -m tests.fuzz.fuzz_texts & wait -n'

# Whole jobs in virtual time, seed after seed: make sim SECONDS=3600 FIRST=1000. The tests take seeds
# 1 to 300. Every tenth second goes to jobs of more than 100 nodes.
SECONDS ?= 600
FIRST ?= 1000
sim: $(SETUP)
	$(BIN)/python -m tests.simulator --seeds $(FIRST)- --seconds $$(($(SECONDS) * 9 / 10))
	$(BIN)/python -m tests.simulator --seeds $(FIRST)- --seconds $$(($(SECONDS) / 10)) --nodes 120

# Which of the bugs that tools/planted_bug_list.py has the simulator finds.
planted: $(SETUP)
	$(BIN)/python -m tools.planted_bugs

$(SETUP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[test]'
	touch $(SETUP)

$(VENV)/.ready-demo: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[demo]'
	touch $@

# What the tests without torch (UNIT_TESTS in tools/matrix.py) need, for a Python without torch.
$(VENV)/.ready-unit: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[unit]'
	touch $@

# An environment of its own: a page needs neither torch nor what the tests need.
$(VENV)/.ready-docs: pyproject.toml
	$(PYTHON) -m venv $(VENV)/docs
	$(VENV)/docs/bin/pip install --quiet --disable-pip-version-check -e '.[docs]'
	touch $@

$(VENV)/.ready-%: $(SETUP)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[$*]'
	touch $@

clean:
	rm -rf $(VENV) .matrix .compat .mypy_cache .ruff_cache .hypothesis .demo .fuzz .coverage-data dist site site-pictures
