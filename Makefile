# Ottla: the commands of a developer's day. `make` alone lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
GATHERED := $(VENV)/.gathered

.PHONY: help install demo quickstart test check gates lint types imports dead-code gather kcat zookeeper test-slow slow-tools bench bench-cluster bench-pipeline simulate freeze wheel clean

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP)  ## make .venv with all a developer needs; .venv/bin/ottla runs after it

$(STAMP): pyproject.toml constraints.txt scripts/make-venv scripts/python.sh
	@scripts/make-venv $(VENV)
	@touch $@

demo: install  ## two minutes of news: a broker, feeds and a pipeline that marks its own work
	@$(BIN)/python scripts/demo.py

quickstart: install  ## a broker, a topic, a producer and a consumer, in five seconds
	@$(BIN)/python scripts/quickstart.py

# The processes of a test run would each compile the tests anew where Python is told to keep no compiled files.
test test-slow gates gather: export PYTHONDONTWRITEBYTECODE =

test: install kcat zookeeper  ## the gates and all tests but the slow ones, in parallel
	@$(MAKE) --no-print-directory -j 2 gates
	$(BIN)/pytest -n auto --dist loadgroup -m "not slow"

check: lint types imports dead-code  ## lint, format, types, import rules and dead code

# The order is that of two processors: types take as long as all the rest.
gates: lint types gather imports dead-code
lint types gather imports dead-code: install

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types:
	$(BIN)/mypy

imports:
	$(BIN)/lint-imports

dead-code:
	$(BIN)/python scripts/dead_code.py

# A test file that cannot be imported is found here, and what is compiled here is compiled for all processes.
gather:
	@echo 'collecting the tests'
	@$(BIN)/pytest --collect-only -qq >$(GATHERED) 2>&1 || { cat $(GATHERED); exit 1; }

# A client under test and the registry of large clusters are programs of the system, not of Python.
kcat zookeeper:
	@scripts/need-$@

# These keep all processors busy themselves, or measure times: one after the other.
ALONE := tests/attacks tests/crash/test_cluster_load.py tests/simulation

# A failure in one part does not keep the others from being run.
test-slow: install kcat zookeeper slow-tools  ## the tests that need minutes, Java, Maven, Go or npm, and properties at length
	@failed=0; \
	$(BIN)/pytest -n auto --dist loadgroup -m slow --durations 20 $(ALONE:%=--ignore %) || failed=1; \
	$(BIN)/pytest -m slow --durations 10 $(ALONE) || failed=1; \
	OTTLA_TEST_EFFORT=thorough $(BIN)/pytest -n auto --timeout 1800 -m "not slow" tests/property tests/unit/coordinator \
		tests/damage tests/crash/test_log_recovery.py tests/simulation || failed=1; \
	exit $$failed

slow-tools:
	@scripts/slow-tools

bench: install  ## Ottla beside Apache Kafka in one run, as a table of ratios
	@$(BIN)/python -m bench

bench-cluster: install  ## three brokers of Ottla beside three of Apache Kafka, replication factor 3
	@$(BIN)/python -m bench.cluster

bench-pipeline: install  ## the Spark source, sink and pipelines beside Spark's own Kafka connector
	@$(BIN)/python -m bench.pipeline

SEEDS ?= 200
FIRST ?= 1
SIMULATION ?= single_broker
simulate: install  ## SEEDS simulated runs of a broker under faults, from seed FIRST on; SIMULATION=cluster for a cluster
	@cd tests && PYTHONPATH=. ../$(BIN)/python -m simulation.$(SIMULATION) --seeds $(SEEDS) --first $(FIRST) --log

freeze: install  ## write the versions now in .venv to constraints.txt
	@{ sed '/^[^#]/,$$d' constraints.txt; $(BIN)/python -m pip freeze --exclude-editable; } > constraints.new
	@mv constraints.new constraints.txt

wheel:  ## build dist/ottla-*.whl, with nothing but the build tool
	@scripts/make-wheel dist

clean:  ## remove .venv and everything that was built
	rm -rf $(VENV) dist build .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
