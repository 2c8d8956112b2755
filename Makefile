# Each target sets up .venv by itself. It needs Python 3.11 or newer and a package index.
PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11,$(shell \
	$(name) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(name))))
BIN := .venv/bin
SOURCES := src tests examples benchmarks

.PHONY: demo test lint bench clean

demo: .venv/ready
	$(BIN)/onepass optimize zoo:resnet50 -o out/resnet50
	$(BIN)/python examples/centerface.py

test: lint
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

lint: .venv/ready
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy

bench: .venv/peers
	$(BIN)/python benchmarks/suite.py

.venv/peers: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,peers]'
	@touch $@

.venv/ready: pyproject.toml
	@test -n "$(PYTHON)" || { echo "onepass needs Python 3.11 or newer on the PATH" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv out .pytest_cache .mypy_cache .ruff_cache
