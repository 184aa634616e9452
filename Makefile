# make run    sets everything up and runs the gateway in front of a mock provider that fails on purpose: no key needed
# make test   sets everything up and runs the tests, lint, types and import rules: six to seven minutes
# make docs   builds the documentation site in build/site
# make compiled   builds a wheel in dist/ with the data path as machine code; needs a C compiler and Python's headers
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests wait longer than they compute: three for each processor of a machine that has two. Each takes up to 1 GB.
WORKERS ?= 6
PORT ?= 8080

.PHONY: run demo test check lint types imports tests thorough-tests tooling-tests engine-tests image-tests tools bench soak storm-matrix frontier fuzz \
	sdk-suites compiled compiled-package compiled-tests release docs lock clean

run: $(VENV)/ready
	$(BIN)/python -m llm_guard demo --port $(PORT) --stay

demo: $(VENV)/ready
	$(BIN)/python -m llm_guard demo

# Types are checked beside the tests: with an empty cache that takes half a minute of one processor.
test: lint imports
	$(MAKE) --jobs=2 --no-print-directory types tests

check: lint types imports

lint: $(VENV)/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/ready-dev
	$(BIN)/mypy

imports: $(VENV)/ready-dev
	$(BIN)/lint-imports

# Tests start Python hundreds of times: without bytecode files each start compiles the package again.
export PYTHONDONTWRITEBYTECODE :=

ELSEWHERE = $(addprefix --ignore=tests/,mutants engines image outage)

tests: $(VENV)/ready-dev $(VENV)/collected tools
	$(BIN)/pytest -n $(WORKERS) --dist worksteal $(ELSEWHERE)

# Compiles the test modules once: in a new clone each worker would compile all of them, for six seconds. What cannot be
# imported is reported by the tests.
$(VENV)/collected: $(VENV)/ready-dev
	-$(BIN)/pytest --collect-only -qq $(ELSEWHERE) > /dev/null
	touch $@

# What CI runs besides: every mutant is killed by its test, and tests that repeat something at random repeat all of it.
THOROUGH_TESTS = tests/mutants $(shell grep -rlE --include='test_*.py' 'from tests.effort import|^ *@given' tests)

thorough-tests: $(VENV)/ready-dev
	LLM_GUARD_TEST_EFFORT=full $(BIN)/pytest -n $(WORKERS) --dist worksteal $(THOROUGH_TESTS)

# Tests of the benchmarks and of the build. CI runs them; users need not.
tooling-tests: $(VENV)/ready-dev
	$(BIN)/pytest -n $(WORKERS) --dist worksteal benchmarks compiling

# Engines in real containers and units: root on Debian, which installs Docker and Podman. Elsewhere they are skipped.
# And llama.cpp, with a model that the test writes, and an outage in front of Prometheus.
engine-tests: $(VENV)/ready-dev $(VENV)/llama-cpp
	$(BIN)/python -m tests.tools engines
	$(BIN)/python -m tests.tools
	$(BIN)/pytest -n $(WORKERS) --dist worksteal tests/outage tests/engines

# The image of the Dockerfile, built on a Debian of its own and run: root on Debian, which installs buildah and Docker.
# IMAGE_OPTIMIZED=true compiles it as it is released, which takes ten minutes of processor time.
IMAGE_OPTIMIZED ?= false

image-tests: $(VENV)/ready-dev
	$(BIN)/python -m tests.tools image
	LLM_GUARD_IMAGE_OPTIMIZED=$(IMAGE_OPTIMIZED) $(BIN)/pytest tests/image

# The wheel works only with this Python version and on this kind of machine.
compiled: $(VENV)/ready-dev
	HATCH_BUILD_HOOK_ENABLE_CUSTOM=true $(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

# Builds a release from the last commit into dist/release/VERSION and tries each wheel in a fresh environment: five minutes.
# Uploads nothing. VERSION=1.2.3 overrides the version from the changelog; RELEASE_OPTIONS=--pure needs no compiler.
release: $(VENV)/ready-dev
	$(BIN)/python -m compiling.release $(if $(VERSION),--version $(VERSION)) $(RELEASE_OPTIONS)

compiled-package: $(VENV)/ready-dev
	$(BIN)/python -m compiling

# The compiled package must come before the working directory and the installed package.
COMPILED := $(CURDIR)/build/compiled/lib
WITH_COMPILED := PYTHONSAFEPATH=1 PYTHONPATH=$(COMPILED):$(CURDIR)
# The operator's side is not compiled: tests of it alone are not repeated here.
COMPILED_TESTS ?= tests/integration tests/e2e tests/chaos tests/security --ignore-glob='*/test_ops_*' \
	--ignore=tests/e2e/test_prometheus.py

compiled-tests: $(VENV)/ready-dev
	$(BIN)/python -m compiling --quick
	$(WITH_COMPILED) $(BIN)/python -m llm_guard --version | grep --fixed-strings +compiled
	$(WITH_COMPILED) $(BIN)/pytest -n $(WORKERS) --dist worksteal -o pythonpath="$(COMPILED) ." $(COMPILED_TESTS)

# Prometheus and a browser, from Debian, if possible (needs root and apt-get). Without them their tests are skipped.
tools: $(VENV)/ready-dev
	$(BIN)/python -m tests.tools

bench: $(VENV)/ready-dev
	$(BIN)/python -m benchmarks

# Five minutes of a thousand streams; not part of `make bench`.
soak: $(VENV)/ready-dev
	$(BIN)/python -m benchmarks soak

# A quarter of an hour of storms on a virtual clock; not part of `make bench`.
storm-matrix: $(VENV)/ready-dev
	$(BIN)/python -m benchmarks storm-matrix

frontier: $(VENV)/ready-dev
	$(BIN)/python -m benchmarks frontier

# A quarter of an hour of nearly valid inputs; inputs that break a target are saved in tests/data/fuzz, and `make test`
# runs them.
fuzz: $(VENV)/ready-dev
	$(BIN)/python -m benchmarks fuzz

# The official SDKs' own tests behind the gateway: ten minutes; pip downloads the SDKs' sources.
sdk-suites: $(VENV)/ready-dev
	$(BIN)/python -m benchmarks sdk-suites

# Warnings are errors. The build loads nothing from the network.
docs: $(VENV)/ready-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "the site is in build/site"

# Resolves the lock files again. Only this target needs uv, and installs it into the environment.
lock: $(VENV)/ready-dev
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
		--upgrade pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
		--upgrade --extra dev --constraint requirements.lock pyproject.toml -o requirements-dev.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
		--upgrade --group build --constraint requirements-dev.lock -o requirements-build.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
		--upgrade --extra encryption --extra redis --constraint requirements-dev.lock pyproject.toml -o requirements-image.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
		--upgrade --group docs --constraint requirements-dev.lock -o requirements-docs.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
		--upgrade --group engines --constraint requirements-dev.lock -o requirements-engines.lock

$(VENV)/made:
	$(PYTHON) -c 'import sys; sys.exit("llm_guard needs Python 3.11 or newer: make PYTHON=python3.11 ...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV) || { echo "python3-venv is missing: apt-get install python3-venv"; exit 1; }
	touch $@

$(VENV)/ready: $(VENV)/made requirements.lock
	@echo "installing what the gateway needs into $(VENV)/: a minute or less, the first time"
	$(BIN)/pip install --disable-pip-version-check --require-hashes -r requirements.lock
	touch $@

$(VENV)/ready-dev: $(VENV)/made requirements-dev.lock pyproject.toml
	@echo "installing what the tests need into $(VENV)/: some minutes, the first time"
	$(BIN)/pip install --disable-pip-version-check --require-hashes -r requirements-dev.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/ready-docs: $(VENV)/ready requirements-docs.lock
	@echo "installing what builds the documentation into $(VENV)/: a minute or less, the first time"
	$(BIN)/pip install --disable-pip-version-check --quiet --require-hashes -r requirements-docs.lock
	touch $@

# Not in the environment itself, whose packages are the lock file's alone. Only this target uses it.
$(VENV)/llama-cpp: $(VENV)/made requirements-engines.lock
	$(BIN)/pip install --disable-pip-version-check --quiet --require-hashes --upgrade --target $@ -r requirements-engines.lock
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build
