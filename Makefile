# Everything is built into a virtual environment of the project's own; nothing else is needed than Python 3.10 or
# later and a C++17 compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := pyproject.toml CMakeLists.txt README.md \
  $(shell find csrc python tests/cuda/emulator -type f ! -name '*.pyc' ! -name '*.so')

# C++ and CUDA, as .clang-format lays it out.
COMPILED := $(shell find csrc tests/core tests/cuda bench -name '*.[ch]pp' -o -name '*.cu')

# The CUDA kernels are compiled for the tests' emulator as well, where it runs.
EMULATED := $(if $(filter Linux,$(shell uname)),ON,OFF)

# Of the campaign below.
MINUTES ?= 60

.PHONY: demo test lint docs attack bench bench-defaults bench-floors bench-busy bench-choices bench-rates bench-scale \
  bench-states bench-stream bench-blocks bench-programs bench-softmax bench-cuda count wheel wheel-cuda clean

demo: $(VENV)/installed
	$(BIN)/linattn-fast demo --picture demo.png

test: $(VENV)/installed
	$(BIN)/python -m pytest

# What is claimed about adversarial data, against exact arithmetic: an hour; seeds are printed.
attack: $(VENV)/installed
	cd tests && ../$(BIN)/python -m attack --minutes $(MINUTES) --write ../bench/results/attack.md

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/clang-format --dry-run --Werror $(COMPILED)

# The manual, docs/_build/html/index.html: warnings are errors, and no network is needed.
docs: $(VENV)/installed
	$(BIN)/python -m sphinx -W --keep-going -n -E -q docs docs/_build/html

# What people call, from tokens to result (the table of the README), and then tokens to moments.
bench: bench-defaults
	$(BIN)/python bench/run.py

# The call that people write, from tokens to result: about two minutes.
bench-defaults: $(VENV)/installed
	$(BIN)/python bench/defaults.py

# Every floor that default calls are held to, and which hold; bench/floors.py --all has two more that take minutes.
bench-floors: $(VENV)/installed
	$(BIN)/python bench/floors.py

# Fits beside two busy processes, against themselves on a quiet machine.
bench-busy: $(VENV)/installed
	$(BIN)/python bench/busy.py

# Whether "auto" takes the fastest solver: all of them are run; ten minutes on a quiet machine.
bench-choices: $(VENV)/installed
	$(BIN)/python bench/choices.py

# The rates that "auto" predicts with (python/linattn_fast/solvers/rates.py), as measured on a quiet machine.
bench-rates: $(VENV)/installed
	$(BIN)/python bench/rates.py

# The matrix-free solver on large problems: about ten minutes and 8 GB of memory.
bench-scale: $(VENV)/installed
	$(BIN)/python bench/scale.py

# Planted softmax layers: how often they are learned, and how fast; about ten minutes.
bench-softmax: $(VENV)/installed
	$(BIN)/python bench/softmax.py

# States at the size of published phase diagrams, drawn in batches: about three minutes.
bench-states: $(VENV)/installed
	$(BIN)/python bench/states.py

# Data larger than memory and on a cluster; 2 GB are written to a temporary folder (BENCH_FOLDER chooses another).
bench-stream: $(VENV)/installed
	$(BIN)/python bench/stream.py

bench-blocks: $(VENV)/installed
	$(BIN)/python bench/blocks.py

# Simulators of automata and Turing machines, compiled, learned and certified: some minutes.
bench-programs: $(VENV)/installed
	$(BIN)/python bench/programs.py

# Needs an NVIDIA card and CuPy (docs/cuda.md); says so and ends with an error where there is none.
bench-cuda: $(VENV)/installed
	$(BIN)/python bench/cuda_backend.py

# Instructions under callgrind (needs valgrind and cmake); UPDATE=1 keeps the new counts.
count:
	UPDATE=$(UPDATE) $(PYTHON) bench/instructions.py

wheel: $(VENV)/installed
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

# The wheel linattn-fast-cu13, with the CUDA module in it (needs nvcc).
wheel-cuda: $(VENV)/installed
	$(BIN)/python packaging/cuda_wheel.py

# Built again whenever a source has changed; the CMake build folder is kept, so that only what changed is compiled.
$(VENV)/installed: $(VENV)/created $(SOURCES)
	$(BIN)/python -m pip install --quiet '.[dev]' --config-settings=cmake.define.LINATTN_CUDA_EMULATED=$(EMULATED)
	@touch $@

$(VENV)/created:
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 10), "Python 3.10 or later is needed"'
	$(PYTHON) -m venv $(VENV)
	@touch $@

clean:
	rm -rf $(VENV) build dist docs/_build demo.png
