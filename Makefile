# Everything runs in .venv, which is made and filled at first use. The machine needs make, Python 3.11+
# and Java 17+ (and for `make test` a JDK and Maven); what is missing is installed or named.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CLASSES := $(VENV)/spark.jsa
PROTO_VENV := .venv-proto
PROTO_STAMP := $(PROTO_VENV)/.installed
RELEASE_VENV := .venv-release
RELEASE_STAMP := $(RELEASE_VENV)/.installed
export PYTHON

# Arguments for pytest: make test PYTEST_ARGS="tests/unit -x"
PYTEST_ARGS ?=
# Tests run in so many processes, each with a cluster and a Spark session of its own; 0: in one, as for a debugger.
TEST_PROCESSES ?= 2
# For the explorer: make explore EXPLORE_ARGS="--bigger -k 3/3/2"
EXPLORE_ARGS ?=

.PHONY: help demo notebooks docs test faults stream-faults simulate simulate-logs simulate-collection explore crash lint format bench proto release clean

help:
	@echo "make demo    real flights through Spark, three bookies and back, with one of them killed"
	@echo "make notebooks  run the notebooks, each from a clean kernel, and keep their outputs"
	@echo "make docs    the site with all pages and the Python API, in build/docs/index.html"
	@echo "make test    all tests: unit, integration, Spark, interop with Apache's Java, faults"
	@echo "make faults  more runs with failing servers and links: SEEDS=1-50, or 7, or 3,8"
	@echo "make stream-faults  streaming queries whose processes and servers are killed: SEEDS=1-50"
	@echo "make simulate  random histories of the protocol on all cores: SEEDS=1000000, or from..to"
	@echo "make simulate-logs  the same of logs: SEEDS=10000, or from..to"
	@echo "make simulate-collection  the same of a bookie's garbage collection"
	@echo "make explore   every order of events in small worlds of the protocol"
	@echo "make crash     a bookie's storage, cut at every write and sync: SEEDS=1-50, or 7, or 3,8"
	@echo "make lint    ruff, mypy --strict, import contract, docs without warnings"
	@echo "make format  let ruff rewrite what it can"
	@echo "make bench   speed of writing and reading"
	@echo "make proto   regenerate the protobuf modules"
	@echo "make release  build wheel and sdist, and run the demo from each of them in a fresh environment"
	@echo "make clean   remove caches and the virtual environments"

$(STAMP): pyproject.toml scripts/make_venv.sh
	@scripts/make_venv.sh $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,dev,docs,demo]'
	@touch $@

demo: $(STAMP)
	@scripts/ensure_java.sh
	$(BIN)/python examples/demo.py

notebooks: $(STAMP)
	@scripts/ensure_java.sh
	$(BIN)/python notebooks/run.py

# Warnings are errors: a broken link, a page that no index names, a gap in a docstring.
# -E reads all pages again, because Sphinx does not repeat the warnings of pages that did not change.
docs: $(STAMP)
	$(BIN)/sphinx-build -q -E -W --keep-going docs build/docs

# Spark's classes in an archive of Java's: sessions of tests start in half of the time.
$(CLASSES): $(STAMP)
	@scripts/ensure_java.sh
	$(BIN)/python -m tests.support.class_archive $@ 2>/dev/null

test: $(STAMP) $(CLASSES)
	@scripts/ensure_java.sh --build
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal $(PYTEST_ARGS)

faults: $(STAMP)
	@scripts/ensure_java.sh
	FAULT_SEEDS=$(SEEDS) $(BIN)/python -m pytest tests/faults/test_continuous_write.py $(PYTEST_ARGS)

stream-faults: $(STAMP) $(CLASSES)
	@scripts/ensure_java.sh
	STREAM_FAULT_SEEDS=$(SEEDS) $(BIN)/python -m pytest tests/faults/streams $(PYTEST_ARGS)

simulate: $(STAMP)
	$(BIN)/python -m tests.simulation run $(or $(SEEDS),100000)

simulate-logs: $(STAMP)
	$(BIN)/python -m tests.simulation run $(or $(SEEDS),10000) --logs

simulate-collection: $(STAMP)
	$(BIN)/python -m tests.simulation run $(or $(SEEDS),5000) --collection

explore: $(STAMP)
	$(BIN)/python -m tests.simulation explore $(EXPLORE_ARGS)

crash: $(STAMP)
	$(BIN)/python -m tests.crash run $(or $(SEEDS),1-20)

lint: $(STAMP) docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	@scripts/ensure_java.sh --build
	$(BIN)/python -m benchmarks

# A generator older than the oldest protobuf we support: its output works with that and with newer ones.
$(PROTO_STAMP): Makefile scripts/make_venv.sh
	@scripts/make_venv.sh $(PROTO_VENV)
	$(PROTO_VENV)/bin/python -m pip install --quiet --disable-pip-version-check grpcio-tools==1.76.0
	@touch $@

proto: $(PROTO_STAMP)
	$(PROTO_VENV)/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. $$(find bk_spark -name '*.proto' | sort)

$(RELEASE_STAMP): Makefile scripts/make_venv.sh
	@scripts/make_venv.sh $(RELEASE_VENV)
	$(RELEASE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'build>=1.3' 'twine>=6.1'
	@touch $@

release: $(RELEASE_STAMP)
	@scripts/ensure_java.sh
	scripts/release.sh $(abspath $(RELEASE_VENV))/bin/python

clean:
	rm -rf $(VENV) $(PROTO_VENV) $(RELEASE_VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build dist *.egg-info
	find bk_spark bookie_server tests benchmarks examples notebooks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
