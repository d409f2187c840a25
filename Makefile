# Each target makes its own environment on first use, from a bare python3.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WEBGPU := .venv-webgpu
WORKERS ?= 3

# Children import our modules hundreds of times: without bytecode each compiles them anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow test-runtime test-webgpu lint format bench docs wheels clean

demo: $(STAMP)
	$(BIN)/olivelike run workflows/demo.yaml
	$(BIN)/olivelike generate models/demo "a red circle on a blue background" --seed 1

test: $(STAMP)
	$(BIN)/python -m pytest --workers $(WORKERS)

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

# What draws and serves, where `olivelike-runtime` alone is installed.
test-runtime: $(STAMP)
	$(BIN)/python -m tools.runtime_tests

# ONNX Runtime's WebGPU provider on a software driver; Debian 12 has what that takes.
test-webgpu: $(STAMP)
	$(BIN)/python tools/webgpu_environment.py $(WEBGPU)
	$(WEBGPU)/bin/with-webgpu python -m pytest -m slow tests/model/targets tests/runtime/sessions/test_webgpu.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python benchmarks/spine.py --quick
	$(BIN)/python benchmarks/peers.py --quick
	$(BIN)/python benchmarks/runtime_step.py --quick --no-compile

docs: $(STAMP)
	$(BIN)/zensical build --clean --strict

wheels: $(STAMP)
	$(BIN)/python -m tools.wheels

$(STAMP): pyproject.toml
	$(PYTHON) -m venv --without-pip $(VENV)
	$(BIN)/python tools/install.py
	touch $@

clean:
	rm -rf $(VENV) .venv-runtime build dist site .cache *.egg-info
