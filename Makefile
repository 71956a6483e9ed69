# Everything a checkout can do. Each target makes the virtual environment it needs.
PYTHON ?= python3
VENV   ?= .venv
BUNDLE ?= dist/reductions
JOBS   ?= $(shell nproc)
RUN     = $(VENV)/bin/python
AOT     = $(VENV)/bin/aot

.PHONY: help native bundle bundle-full bundle-gpu-tests bundle-benchmarks test test-slow test-gpu lint types wheel-check check schema clean

help:
	@echo "make bundle       build the shipped reductions for sm_90 into $(BUNDLE)"
	@echo "make bundle-full  build them for every target of their specs into dist/reductions-full"
	@echo "make native       compile the native launcher again"
	@echo "make test         run the tests that need no GPU"
	@echo "make test-slow    run those of them that take minutes, which make test leaves out"
	@echo "make test-gpu     run the GPU suite, after make bundle bundle-gpu-tests;"
	@echo "                  torch with CUDA must be there"
	@echo "make check        lint, types, tests, wheel check"

$(VENV)/.build: pyproject.toml
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install -q -e '.[pinned]'
	touch $@

# torch comes first and by its exact version: anything that depends on it would
# otherwise fetch the CUDA build, which nothing here uses.
$(VENV)/.dev: pyproject.toml
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install -q torch==2.13.0
	$(RUN) -m pip install -q -e '.[dev]'
	touch $@ $(VENV)/.build

native: $(VENV)/.build
	$(RUN) loader/csrc/compile.py

bundle: $(VENV)/.build
	$(AOT) build kernel_specs/reductions --target sm_90 -o $(BUNDLE) -j $(JOBS)

bundle-full: $(VENV)/.build
	$(AOT) build kernel_specs/reductions -o dist/reductions-full -j $(JOBS)

# The interpreter replaces triton.jit for a whole process, so its tests have one of their own.
test: $(VENV)/.dev
	$(RUN) -m pytest -q -n $(JOBS) --dist loadgroup --ignore=tests/interpreter \
		-m 'not gpu and not slow' tests
	TRITON_INTERPRET=1 $(RUN) -m pytest -q -n $(JOBS) -m 'not slow' tests/interpreter

# What takes minutes: memory over thousands of calls, sanitizers, numerical gradients.
test-slow: $(VENV)/.dev
	$(RUN) -m pytest -q -n $(JOBS) --ignore=tests/interpreter -m 'slow and not gpu' tests
	TRITON_INTERPRET=1 $(RUN) -m pytest -q -n $(JOBS) -m slow tests/interpreter

bundle-gpu-tests: $(VENV)/.build
	$(AOT) build tests/gpu/kernels -o dist/gpu-tests -j $(JOBS)
	$(RUN) -m tests.tutorial dist/tutorial

# The kernels and the bundle of 10,000 variants that the benchmarks measure, after make bundle.
bundle-benchmarks: $(VENV)/.build
	$(AOT) build benchmarks/kernels -o dist/benchmark-kernels -j $(JOBS)
	$(RUN) -m benchmarks.bigbundle -o dist/bundle-10k --reductions $(BUNDLE)

# Uses the python on the PATH: on a GPU machine torch with CUDA is usually installed there.
test-gpu:
	AOT_BUNDLE_PATH=$(BUNDLE) $(PYTHON) -m pytest -q -m gpu tests/gpu

lint: $(VENV)/.dev
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

types: $(VENV)/.dev
	$(RUN) -m mypy

wheel-check: $(VENV)/.dev
	$(RUN) -m tests.wheel_check

check: lint types test wheel-check

schema: $(VENV)/.dev
	$(RUN) -m aot.build.schema > docs/spec-schema.json

clean:
	rm -rf dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
