# make setup       sets up .venv, in which quap_tff, data and experiments run from any folder; other targets do so first
# make demo        trains QuAP-FL on handwritten digits, and then with a guarantee, whose certificate it verifies
# make compare     compares it with TFF's own private methods: minutes on digits; DATA=DIR DATASET=femnist: hours; DATASET=npz:path=FILE: your own; EPSILONS=1,3,6
# make test        tests what is claimed, by examples; see pytest.ini for the marks
# make test-fast   runs what takes no time
# make test-all    runs all tests
# make test-light  runs those of make test that need no TensorFlow, with the newest Python and packages, see tests/light.py
# make test-bundle plays exported rounds by the newest Python and TensorFlow, which takes 1 GB; CI leaves it out
# make test-deploy runs servers and nodes over Flower as processes on this machine; the environment takes 1.5 GB, once
# make lint        checks style and types
# make docs        builds the documentation into build/site
# make tutorial    runs docs/tutorial.ipynb and keeps its outputs in the file
# make clean       removes what the other targets made

VENV := .venv
PYTHON := $(VENV)/bin/python
PACKAGES := $(VENV)/.ready
READY := $(VENV)/.project

# Another interpreter: make test BASE_PYTHON=/path/to/python3.10
BASE_PYTHON ?=
CANDIDATES := $(if $(BASE_PYTHON),$(BASE_PYTHON),python3.11 python3.10 python3 python)
SUITABLE := import sys, platform; \
  sys.exit(not ((3, 10) <= sys.version_info < (3, 12) and platform.system() == "Linux" and platform.machine() == "x86_64"))

# The documentation has its own environment, see docs/requirements.txt.
DOCS_VENV := build/docs_venv
DOCS_READY := $(DOCS_VENV)/.ready

# Verification, plans and accounting run on newer Pythons than TFF, and with newer packages. Their tests take the newest
# Python on the path or of pyenv, or BASE_PYTHON, with an environment that is made anew each time.
LIGHT_VENV := build/light_venv
LIGHT_CANDIDATES := $(if $(BASE_PYTHON),$(BASE_PYTHON),python3 $(wildcard \
  $(addsuffix /python3.?,$(subst :, ,$(PATH))) $(addsuffix /python3.??,$(subst :, ,$(PATH))) \
  $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions/3.*/bin/python) $(PYTHON))
LIGHT_SUITABLE := import sys, ensurepip, venv; v = sys.version_info; \
  v >= (3, 10) and v.releaselevel == "final" and print(v.major, v.minor, sys.executable)

# What the tests of bundles find if it is there: see tests/quap_tff/bundle/playing_test.py.
BUNDLE_VENV := build/bundle_venv

# Flower, TensorFlow and pytest for the tests of runs between processes; made anew when pyproject.toml changes.
DEPLOY_VENV := build/deploy_venv
DEPLOY_READY := $(DEPLOY_VENV)/.ready

# Tests start many processes: each would compile the project again if Python kept no bytecode.
KEEPING_BYTECODE := env -u PYTHONDONTWRITEBYTECODE
# Each process gets a stretch of the tests, so that a file's fixtures are mostly made once. One that is done takes from
# the others.
IN_PARALLEL := --numprocesses=auto --maxprocesses=4 --dist=worksteal
# Runs between processes wait more than they compute. The longest ones come first, each to another process.
DEPLOY_TESTS := $(addprefix tests/,quap_tff/flower/deploy_test.py quap_tff/flower/supernode_test.py quap_tff/flower docs/gate_test.py)
WAITING := --numprocesses=4 --dist=loadgroup --no-loadscope-reorder

.PHONY: clean compare demo docs lint setup test test-all test-bundle test-deploy test-fast test-light tutorial

demo: $(READY)
	@$(PYTHON) -m experiments.demo

compare: $(READY)
	@$(PYTHON) -m experiments.compare --dataset=$(or $(DATASET),digits) $(if $(DATA),--data_dir=$(DATA)) $(if $(EPSILONS),--epsilons=$(EPSILONS))

test: $(READY)
	@$(KEEPING_BYTECODE) $(PYTHON) -m pytest tests -m "not thorough" $(IN_PARALLEL)

test-fast: $(READY)
	@$(KEEPING_BYTECODE) $(PYTHON) -m pytest tests -m "not slow and not thorough" $(IN_PARALLEL)

test-all: $(READY)
	@$(KEEPING_BYTECODE) $(PYTHON) -m pytest tests $(IN_PARALLEL)

# The newest suitable Python makes the environment.
NEWEST = $$(for python in $(LIGHT_CANDIDATES); do $$python -c '$(LIGHT_SUITABLE)' 2>/dev/null; done \
  | sort -k1,1n -k2,2n | tail -n 1 | cut -d" " -f3-)

test-bundle: $(READY)
	@$(NEWEST) -m venv --clear $(BUNDLE_VENV)
	@$(BUNDLE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check ".[bundle]"
	@$(KEEPING_BYTECODE) $(PYTHON) -m pytest tests/quap_tff/bundle -rs

test-deploy: $(READY) $(DEPLOY_READY)
	@$(KEEPING_BYTECODE) $(DEPLOY_VENV)/bin/python -m pytest $(DEPLOY_TESTS) -rs $(WAITING)

$(DEPLOY_READY): pyproject.toml
	@base=$(NEWEST); echo "Setting up $(DEPLOY_VENV) with $$($$base --version)."; $$base -m venv --clear $(DEPLOY_VENV)
	@$(DEPLOY_VENV)/bin/python -m pip install --quiet --disable-pip-version-check ".[flower,test-deploy]" "flwr[simulation]"
	@$(DEPLOY_VENV)/bin/python -m pip uninstall --quiet --yes quap_tff
	@touch $@

test-light:
	@base=$(NEWEST); \
	if [ -z "$$base" ]; then \
	  echo "make test-light needs Python 3.10 or later with its venv package. None of these is suitable: $(LIGHT_CANDIDATES). Name another: make test-light BASE_PYTHON=/path/to/python3" >&2; \
	  exit 1; \
	fi; \
	echo "Setting up $(LIGHT_VENV) with $$($$base --version)."; \
	$$base -m venv --clear $(LIGHT_VENV)
	@$(LIGHT_VENV)/bin/python -m pip install --quiet --disable-pip-version-check ".[test-light]"
	@$(KEEPING_BYTECODE) $(LIGHT_VENV)/bin/python -m pytest tests -m "not thorough" $(IN_PARALLEL)

lint: $(READY)
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m mypy

docs: $(DOCS_READY)
	@NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build
	@echo "Open build/site/index.html. Its search needs a server: python3 -m http.server --directory build/site"

tutorial: $(READY)
	@$(VENV)/bin/jupyter-execute --inplace docs/tutorial.ipynb

setup: $(READY)

$(DOCS_READY): docs/requirements.txt $(PACKAGES)
	@echo "Setting up $(DOCS_VENV) for the documentation."
	@$(PYTHON) -m venv --clear $(DOCS_VENV)
	@$(DOCS_VENV)/bin/python -m pip install --disable-pip-version-check --no-deps -r docs/requirements.txt
	@touch $@

# The project itself: a path that is relative, so that the folder may be moved.
$(READY): $(PACKAGES)
	@$(PYTHON) -c 'import os, sysconfig; site = sysconfig.get_path("purelib"); \
	  open(os.path.join(site, "quap_tff.pth"), "w").write(os.path.relpath(os.curdir, site) + "\n")'
	@touch $@

# The stamp is written last, so that an interrupted installation starts again.
$(PACKAGES): requirements.txt
	@base=; for python in $(CANDIDATES); do \
	  if $$python -c '$(SUITABLE)' >/dev/null 2>&1; then base=$$python; break; fi; \
	done; \
	if [ -z "$$base" ]; then \
	  echo "quap_tff needs Python 3.10 or 3.11 on 64-bit x86 Linux (TensorFlow Federated 0.87 runs on nothing else). None of these is suitable: $(CANDIDATES). Install a suitable one, or name it: make BASE_PYTHON=/path/to/python3.11" >&2; \
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
	rm -rf $(VENV) build
