# `make reproduce` and `make test` are all a user needs; each sets up what it uses.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: reproduce test test-slow test-versions test-docs firmware bits check format bench wheel lock clean

reproduce: $(READY)
	$(BIN)/selftune reproduce

# Most tests compile without XLA's optimizations, to save time. Tests that promise bits compile as users do.
test: $(READY)
	$(BIN)/pytest -n auto -m "not slow and not bits"
	XLA_FLAGS= $(BIN)/pytest -n auto -m "bits and not slow"

test-slow: $(READY)
	$(BIN)/pytest -m "slow and not bits"
	XLA_FLAGS= $(BIN)/pytest -m "slow and bits"

# What another version of Python or JAX can break: make test-versions PYTHON=python3.13 VENV=.venv-3.13
test-versions: $(READY)
	$(BIN)/pytest -n auto -m "versions and not slow"

# The pages alone: links, public names, the map of the source, and every block of code.
test-docs: $(READY)
	$(BIN)/pytest -n auto tests/test_docs.py tests/test_architecture.py tests/test_float32.py tests/test_examples.py

# Exported controllers, cross-compiled and run on an emulated Cortex-M4F.
firmware: $(READY)
	$(BIN)/python -m tests.native.cortex_m4
	SELFTUNE_NEEDS_ARM=1 $(BIN)/pytest -m slow tests/native/test_firmware_qemu.py

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
		--extra dev --extra experiments --extra robots --extra cluster pyproject.toml --output-file requirements.lock --custom-compile-command "make lock"

$(READY): requirements.lock pyproject.toml
	python=$$(.ci/find-python $(PYTHON)) && \
		$$python -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "selftune needs Python 3.11 or later")' && \
		$$python -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis results dist
