# make setup   a virtual environment with everything, the jars and the plugin; the targets below do it first
# make demo    ARGS="--seconds 60 --rate 3000"
# make test    ARGS="tests/local -k jars"; what fails runs once more
# make test-all   also kills servers, and runs what is slow, in two hours
# make test-pythons   the tests that need no server, on each Python from 3.11 on that is here; ARGS="3.12 3.13"
# make browser    a Chromium for the tests of the console's page, unpacked into the cache, where none is installed
# make check   ruff, mypy, the rules of imports, and the types and the form of the console's page
# make docs    the site of docs/, with search and the reference of the public names, in docs/build/html
# make changes    what will be the next section of CHANGELOG.md
# make release   VERSION=0.1.0a1; moves the files of changes/ into CHANGELOG.md, commits, builds into dist/, and tries what was built
# make fuzz    ARGS="--minutes 30"; every decoder of bytes from outside under random and damaged input
# make bench   ARGS="--json results.json"
# make bench-wire   the Kafka client in the table that the authors of Seastar's published, measured here

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
PLUGIN := src/penstock/local/penstock-cassandra.jar
LOCKS := $(wildcard src/penstock/local/locks/*.lock)
FETCH = $(BIN)/python -c 'import sys; from penstock.local import jars; [jars.fetch(name, print) for name in sys.argv[1:]]'
# Two processes with servers of their own: one of them waits for a third of the time.
PYTEST = $(BIN)/python scripts/attempts.py --numprocesses=2 --dist=loadfile --no-loadscope-reorder --durations=25 --durations-min=5
# What does not depend on each other is fetched, compiled and built at the same time.
MAKEFLAGS += --jobs=3

.PHONY: setup help demo test test-all test-pythons browser check docs changes release fuzz bench bench-wire

setup: .venv/fetched .venv/compiled $(PLUGIN)

.venv/installed: pyproject.toml requirements/build.txt requirements/dev.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed; set PYTHON to one"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python scripts/install.py
	$(BIN)/python -m compileall -q src
	@touch $@

.venv/fetched-for-demo: .venv/installed $(LOCKS)
	$(FETCH) kafka cassandra spark
	@touch $@

.venv/compiled-for-demo: .venv/installed
	$(BIN)/penstock compile kafka-client change-logs
	@touch $@

.venv/fetched: .venv/fetched-for-demo
	$(FETCH) kafka-tools kafka-connect registry
	@touch $@

.venv/compiled: .venv/compiled-for-demo .venv/fetched-for-demo
	$(BIN)/penstock compile
	@touch $@

$(PLUGIN): .venv/installed $(shell find cassandra -type f)
	$(BIN)/python cassandra/build.py
	@touch $@

help:
	@sed -n 's/^# //p; /^$$/q' Makefile

demo: .venv/fetched-for-demo .venv/compiled-for-demo $(PLUGIN)
	$(BIN)/penstock demo $(ARGS)

test: setup
	$(PYTEST) -m "not kill and not slow" $(ARGS)

test-all: setup
	$(PYTEST) $(ARGS)

test-pythons: setup
	$(BIN)/python scripts/pythons.py $(ARGS)

browser: .venv/installed
	$(BIN)/python tests/support/http/chromium.py

.venv/page/installed: .venv/installed scripts/page/package.json scripts/page/package-lock.json
	$(BIN)/python scripts/check_page.py --install
	@touch $@

# WITHOUT_PAGE=1 leaves the console's page out, where npm's registry cannot be reached.
check: .venv/installed $(if $(WITHOUT_PAGE),,.venv/page/installed)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(if $(WITHOUT_PAGE),@echo "the console's page is not checked",$(BIN)/python scripts/check_page.py)
	$(BIN)/pytest --quiet tests/test_imports.py

docs: .venv/installed
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --builder html docs docs/build/html
	@echo "docs/build/html/index.html"

changes: .venv/installed
	@$(BIN)/towncrier build --draft --version next

release: .venv/fetched .venv/compiled
	$(BIN)/python scripts/release.py $(VERSION)
	PENSTOCK_TEST_WHEEL=$$(ls $(CURDIR)/dist/*.whl) $(BIN)/pytest --quiet tests/first_hour/test_extras.py \
		tests/first_hour/test_each_extra.py

fuzz: setup
	cd tests && ../$(BIN)/python -m fuzz $(ARGS)

bench: setup
	@set -e; for file in benchmarks/[a-z]*.py; do echo "$$file"; $(BIN)/python $$file $(ARGS); done

bench-wire: setup
	$(BIN)/python benchmarks/wire.py --published $(ARGS)
