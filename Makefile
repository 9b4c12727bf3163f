# Everything runs in .venv, which the first target makes; nothing is installed elsewhere.
PYTHON ?= python3
MINUTES ?= 20
WORK ?= 5
BIN := .venv/bin
# Bytecode is kept, whatever the environment says: without it a new interpreter takes seconds to import.
export PYTHONDONTWRITEBYTECODE :=
# uv installs in a third of pip's time.
INSTALL := $(BIN)/python -m uv pip install --quiet --python $(BIN)/python
# Times of all tests are kept in build/tests.xml.
PYTEST := $(BIN)/python -m pytest --numprocesses auto --dist worksteal --durations 15 --junit-xml build/tests.xml

.PHONY: demo test test-rest test-all test-long check format docs notebooks benchmarks library campaign reproduce validate validate-cpu clean

demo: .venv/papers .venv/serving  ## compare all policies on a synthetic workload and write an HTML report
	@mkdir -p demo
	$(BIN)/optsched compare family:chat-and-summaries,n=2000,seed=1 --html demo/report.html
	@echo "open demo/report.html in a browser"

test: .venv/dev  ## the core: quick tests, and few cases of some; run it before every commit
	$(PYTEST) --quick tests optsched

test-rest: .venv/dev  ## what CI runs besides: slow tests, all of its cases, serving, papers
	$(PYTEST) --rest

test-all: test test-rest docs  ## all that CI tests; docs run the notebooks

test-long: .venv/dev  ## long tests, with all random cases and coverage, and the oldest dependencies
	$(PYTEST) --hypothesis-profile thorough --cov --cov-report term:skip-covered
	.ci/oldest

check: .venv/dev  ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/dev  ## runs the notebooks that changed, or all after a change of code; then the site, in docs/_build
	$(BIN)/python docs/execute.py
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs docs/_build

notebooks: .venv/dev  ## writes the outputs of the notebooks that are committed; look at what changed
	$(BIN)/python docs/execute.py --write

benchmarks: .venv/dev  ## ratios to what one would write otherwise, in one table; about ten minutes
	$(INSTALL) --editable '.[benchmarks]'
	$(BIN)/python benchmarks/run.py

library: .venv/dev  ## better records for the library, by so much work for each: make library WORK=20; goes on where it stopped
	$(BIN)/python benchmarks/library.py improve --work $(WORK)

campaign: .venv/dev  ## optsched under abuse: make campaign MINUTES=20; goes on where it stopped
	cd tests && ../$(BIN)/python -m campaign --minutes $(MINUTES) --out ../campaign.json

reproduce: .venv/papers  ## all tables, figures and theorems of the papers, in full; goes on where it stopped
	$(BIN)/optsched reproduce all --out reproduced
	@echo "open reproduced/index.html in a browser"

validate: build/validate/ready  ## a real vLLM, in a venv of its own (4 GB), with our orders inside
	build/validate/bin/python benchmarks/validate_vllm.py serving/docs/evidence.md
	build/validate/bin/python benchmarks/vllm_campaign.py 1000

validate-cpu: build/validate-cpu/ready  ## the same with a model that computes on a CPU (4.7 GB); gains are measured; at most ten minutes
	build/validate-cpu/bin/python benchmarks/validate_cpu.py serving/docs/evidence.md

build/validate/ready build/validate-cpu/ready: benchmarks/install_vllm.py pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python benchmarks/install_vllm.py $(if $(findstring cpu,$@),compute)
	$(@D)/bin/python benchmarks/vllm_campaign.py 100  # where nothing else is, neither solver nor plots
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --editable . --editable ./serving
	@touch $@

.venv/ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(INSTALL) --editable .
	@touch $@

.venv/papers: .venv/ready papers/pyproject.toml
	$(INSTALL) --editable ./papers
	@touch $@

.venv/serving: .venv/ready serving/pyproject.toml
	$(INSTALL) --editable ./serving
	@touch $@

.venv/dev: .venv/ready papers/pyproject.toml serving/pyproject.toml
	$(INSTALL) --editable '.[dev]' --editable ./papers --editable ./serving
	@touch .venv/papers .venv/serving $@

clean:
	rm -rf .venv build/validate build/validate-cpu build/notebooks demo docs/_build docs/notebooks docs/papers docs/serving docs/jupyter_execute
