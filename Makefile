# Two commands: `make demo` and `make test`. Each sets up .venv on a fresh machine; a second run installs nothing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Without a card the CPU build of torch is enough, and this exact version resolves to it in about a minute.
TORCH := $(if $(shell command -v nvidia-smi 2>/dev/null),torch>=2.11,torch==2.13.0)

.PHONY: demo test lint types clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet '$(TORCH)'
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/inferdoc diagnose --output demo

test: lint types
	$(BIN)/pytest -n 2

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The three top-level folders are parts of the package: type checkers see them where they are installed.
types: $(VENV)/.installed
	rm -rf build/typed && mkdir -p build/typed
	cp -rs $(CURDIR)/inferdoc build/typed/inferdoc
	cp -rs $(CURDIR)/probes $(CURDIR)/rules $(CURDIR)/reports build/typed/inferdoc/
	cd build/typed && ../../$(BIN)/mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache -p inferdoc

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis demo
