# `make demo` and `make test` set up everything they need in .venv, then do their job.

VENV := .venv
PYTHON := $(VENV)/bin/python
READY := $(VENV)/.ready

# Another interpreter: make test BASE_PYTHON=/path/to/python3.10
BASE_PYTHON ?=
CANDIDATES := $(if $(BASE_PYTHON),$(BASE_PYTHON),python3.11 python3.10 python3.9 python3 python)
SUITABLE := import sys, platform; \
  sys.exit(not ((3, 9) <= sys.version_info < (3, 12) and platform.system() == "Linux" and platform.machine() == "x86_64"))

.PHONY: demo test setup clean

demo: $(READY)
	@$(PYTHON) -m experiments.train --flagfile=experiments/presets/demo.flags

test: $(READY)
	@$(PYTHON) -m pytest tests --numprocesses=auto --maxprocesses=4 --dist=loadfile

setup: $(READY)

# The stamp is written last, so that an installation that was cut short is taken up again.
$(READY): requirements.txt
	@base=; for python in $(CANDIDATES); do \
	  if $$python -c '$(SUITABLE)' >/dev/null 2>&1; then base=$$python; break; fi; \
	done; \
	if [ -z "$$base" ]; then \
	  echo "quap_tff needs Python 3.9, 3.10 or 3.11 on 64-bit x86 Linux (TensorFlow Federated 0.87 runs on nothing else); none of these is one: $(CANDIDATES). Install one, or name it: make BASE_PYTHON=/path/to/python3.11" >&2; \
	  exit 1; \
	fi; \
	if ! $$base -c 'import ensurepip, venv' >/dev/null 2>&1; then \
	  echo "$$base cannot make virtual environments: install its venv package (on Debian and Ubuntu: apt install python3-venv)." >&2; \
	  exit 1; \
	fi; \
	echo "Setting up $(VENV) with $$($$base --version): about one minute and 2.5 GB, once."; \
	$$base -m venv --clear $(VENV)
	@$(PYTHON) -m pip install --disable-pip-version-check --no-deps -r requirements.txt
	@touch $@

clean:
	rm -rf $(VENV)
