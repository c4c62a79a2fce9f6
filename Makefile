# Everything runs in .venv, which is created at first use. Needs make, Python 3.11+ and Java 17+
# (`make test` also needs a JDK and Maven). Missing tools are installed, or an error names them.

# make test VENV=.venv-3.14 PYTHON=python3.14: an environment keeps the Python that it was made with.
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CLASSES := $(VENV)/spark.jsa
APACHE_CLASSES := $(VENV)/apache.jsa
PROTO_VENV := .venv-proto
PROTO_STAMP := $(PROTO_VENV)/.installed
RELEASE_VENV := .venv-release
RELEASE_STAMP := $(RELEASE_VENV)/.installed
export PYTHON
ifeq ($(filter clean help,$(MAKECMDGOALS)),)
ifneq ($(and $(PYTHON),$(wildcard $(BIN)/python)),)
ifneq ($(shell $(PYTHON) --version 2>&1),$(shell $(BIN)/python --version 2>&1))
$(error $(VENV) has $(shell $(BIN)/python --version 2>&1), not that of PYTHON=$(PYTHON). Name another directory, as VENV=.venv-3.14, or remove $(VENV))
endif
endif
endif
# Hundreds of processes import our modules: each would compile them again.
unexport PYTHONDONTWRITEBYTECODE

# Arguments for pytest: make test PYTEST_ARGS="tests/unit -x"
PYTEST_ARGS ?=
# today: long tests take turns, and run on one day of a few. all: they all run. Default: today, but all if PYTEST_ARGS
# choose tests.
TEST_TURNS ?=
# Number of test processes, each with its own cluster and Spark session. Four suit two cores, since many tests wait.
# 0 runs all tests in one process, for debuggers.
TEST_PROCESSES ?= 4
# For the explorer: make explore EXPLORE_ARGS="--bigger -k 3/3/2"
EXPLORE_ARGS ?=

# For bench-compare and bench-check: the commit to compare with (0.1.0), and the benchmark with its options.
BASE ?= 3a3112f
BENCH ?= bookie_raw
BENCH_ROUNDS ?= 3

# Whole manifests. The others are patches, or files of kustomize.
MANIFESTS := $(filter-out %/kustomization.yaml %/bookie-rack.yaml,$(wildcard deploy/kubernetes/*/*.yaml))

.PHONY: help demo notebooks docs test deployed faults heal-faults stream-faults handed-over rolling sparks simulate simulate-logs simulate-collection simulate-auditing simulate-replication simulate-mutants explore crash fuzz nightly mutants lint format bench bench-compare bench-check proto release clean

help:
	@echo "make demo    write real flight data with Spark to four bookies, kill one, and read it back"
	@echo "make notebooks  run the notebooks, each in a clean kernel, and save their outputs"
	@echo "make docs    build the site with all pages and the Python API: build/docs/index.html"
	@echo "make test    run all tests: unit, integration, Spark, interop with Apache's Java, faults"
	@echo "make deployed  run the files of deploy/ with Docker and with systemd, as root on Debian: PARTS=\"compose spark\""
	@echo "make faults  run more fault tests with failing servers and links: SEEDS=1-50, or 7, or 3,8"
	@echo "make heal-faults  kill bookies for good, and those that repair, under load: SEEDS=1-20, or 7, or 3,8"
	@echo "make stream-faults  run streaming queries while their processes and servers are killed: SEEDS=1-50"
	@echo "make handed-over  let either bookie go on with directories that the other left, in every order: SEEDS=0-3, or 2"
	@echo "make rolling  replace Apache's bookies by ours and back, one after the other, while clients go on"
	@echo "make test VENV=.venv-3.14 PYTHON=python3.14  run the tests with another Python, in an environment of its own"
	@echo "make sparks  run the tests of the data source with another release of Spark: RELEASE=4.0"
	@echo "make simulate  play random histories of the protocol on all cores, other ones every day: SEEDS=1000000, or from..to"
	@echo "make simulate-logs  the same for logs: SEEDS=10000, or from..to"
	@echo "make simulate-collection  the same for a bookie's garbage collection"
	@echo "make simulate-auditing    the same for auditors and replication workers"
	@echo "make simulate-replication  the same for the repair of a ledger"
	@echo "make simulate-mutants  look from seed 0 on for histories that find each broken rule, and note their seeds"
	@echo "make explore   try every order of events in small worlds of the protocol"
	@echo "make crash     crash a bookie's storage at every write and sync: SEEDS=1-50, or 7, or 3,8"
	@echo "make fuzz      give every decoder more bytes that nobody should have sent: SEEDS=1-5, FACTOR=20, TESTS=tests/fuzz/test_metadata.py"
	@echo "make nightly   all of these runs with the seeds of the day, in two hours, and a report: MINUTES=115"
	@echo "make mutants   break rules of the source on purpose, in copies, and see that tests fail: RULES=flush.py"
	@echo "make lint    run ruff, mypy --strict, the import contracts and the checks of deploy/, and build the docs without warnings"
	@echo "make format  apply the fixes and formatting of ruff"
	@echo "make bench   measure the speed of writes and reads"
	@echo "make bench-compare  run a benchmark on two commits in turn: BASE=<commit> BENCH='bookie_raw --entries 100000'"
	@echo "make bench-check  fail if an entry costs bookie or client 20 % more CPU time than in BASE (0.1.0)"
	@echo "make proto   regenerate the protobuf modules"
	@echo "make release  build wheel and sdist, and run the demo from each in a fresh environment"
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

# Warnings are errors: broken links, pages missing from every index, incomplete docstrings.
# -E reads all pages again, because Sphinx does not repeat the warnings of unchanged pages.
docs: $(STAMP)
	$(BIN)/sphinx-build -q -E -W --keep-going docs build/docs

# Spark's classes in a Java AppCDS archive, which halves the start time of test sessions.
$(CLASSES): $(STAMP)
	@scripts/ensure_java.sh
	$(BIN)/python -m tests.support.class_archive $@ 2>/dev/null

# The same for the JVMs that run Apache BookKeeper.
$(APACHE_CLASSES): $(STAMP) tests/interop/java/pom.xml $(wildcard tests/interop/java/src/main/java/org/bkspark/interop/*)
	@scripts/ensure_java.sh --build
	$(BIN)/python -m tests.interop.class_archive $@

test: $(STAMP) $(CLASSES) $(APACHE_CLASSES)
	@scripts/ensure_java.sh --build
	@scripts/ensure_test_programs.sh $(BIN)
	TEST_TURNS=$(or $(TEST_TURNS),$(if $(PYTEST_ARGS),all,today)) $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal $(PYTEST_ARGS)

# Docker and systemd come from Debian's packages, into build/deployed (3 GB and two minutes, once; images and what they were built from take 5 GB).
deployed: $(STAMP)
	$(BIN)/python -m tests.deployed $(PARTS)

faults: $(STAMP)
	@scripts/ensure_java.sh
	FAULT_SEEDS=$(SEEDS) $(BIN)/python -m pytest tests/faults/test_continuous_write.py $(PYTEST_ARGS)

heal-faults: $(STAMP)
	@scripts/ensure_java.sh
	HEAL_SEEDS=$(SEEDS) $(BIN)/python -m pytest tests/faults/healing/test_healing.py $(PYTEST_ARGS)

stream-faults: $(STAMP) $(CLASSES)
	@scripts/ensure_java.sh
	STREAM_FAULT_SEEDS=$(SEEDS) $(BIN)/python -m pytest tests/faults/streams $(PYTEST_ARGS)

handed-over: $(STAMP) $(APACHE_CLASSES)
	@scripts/ensure_java.sh --build
	HANDED_OVER_SEEDS=$(or $(SEEDS),0-3) $(BIN)/python -m pytest tests/interop/test_directories_handed_over.py -k every_order $(PYTEST_ARGS)

rolling: $(STAMP) $(CLASSES) $(APACHE_CLASSES)
	@scripts/ensure_java.sh --build
	ROLLING_RING=1 $(BIN)/python -m pytest tests/interop/test_rolling_replacement.py tests/interop/test_repair_commands.py $(PYTEST_ARGS)

# Another release of Spark is downloaded once (430 MB), into $(VENV)/sparks.
sparks: $(STAMP)
	@scripts/ensure_java.sh
	$(BIN)/python -m tests.support.sparks $(or $(RELEASE),4.0) $(PYTEST_ARGS)

simulate: $(STAMP)
	$(BIN)/python -m tests.simulation run $(or $(SEEDS),100000)

simulate-logs: $(STAMP)
	$(BIN)/python -m tests.simulation run $(or $(SEEDS),10000) --logs

simulate-collection: $(STAMP)
	$(BIN)/python -m tests.simulation run $(or $(SEEDS),10000) --collection

simulate-auditing: $(STAMP)
	$(BIN)/python -m tests.simulation run $(or $(SEEDS),10000) --auditing

simulate-replication: $(STAMP)
	$(BIN)/python -m tests.simulation run $(or $(SEEDS),10000) --replication

# One process: each mutant writes its seed into the same file.
simulate-mutants: $(STAMP)
	SEARCH_MUTANTS=1 $(BIN)/python -m pytest tests/simulation -k are_caught $(PYTEST_ARGS)

explore: $(STAMP)
	$(BIN)/python -m tests.simulation explore $(EXPLORE_ARGS)

crash: $(STAMP)
	$(BIN)/python -m tests.crash run $(or $(SEEDS),1-20)

fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz $(or $(SEEDS),today) --factor $(or $(FACTOR),20) $(TESTS)

nightly: $(STAMP) $(CLASSES) $(APACHE_CLASSES)
	@scripts/ensure_java.sh --build
	$(BIN)/python -m tests.nightly --minutes $(or $(MINUTES),115)

mutants: $(STAMP)
	@scripts/ensure_java.sh
	$(BIN)/python -m tests.mutation $(RULES)

lint: $(STAMP) docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/yamllint --strict -c deploy/.yamllint deploy
	$(BIN)/hadolint deploy/docker/Dockerfile
	$(BIN)/kubernetes-validate --strict --quiet $(MANIFESTS)

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	@scripts/ensure_java.sh --build
	$(BIN)/python -m benchmarks

bench-compare: $(STAMP)
	@scripts/ensure_java.sh --build
	$(BIN)/python -m benchmarks.compare --rounds $(BENCH_ROUNDS) $(BASE) $(BENCH)

# CPU time, not time: it is nearly the same whatever else the machine does.
bench-check: $(STAMP)
	@scripts/ensure_java.sh
	$(BIN)/python -m benchmarks.compare --rounds 2 --limit 1.2 --judge '^(adds|reads|batch_reads)[.]bookie_cpu' $(BASE) bookie_raw
	$(BIN)/python -m benchmarks.compare --rounds 2 --limit 1.2 --judge '^(write|read)[.]clear[.]cpu$$' $(BASE) tls --sizes 1024 --megabytes 150 --rounds 1

# This generator is older than the oldest protobuf that we support, so its output works with all supported versions.
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
