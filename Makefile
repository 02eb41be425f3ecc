# Two commands for newcomers: `make demo` and `make test`. Both set up everything in .venv first.
# What has to be there already: Linux, Python 3.11 or later (with venv), make, g++. A GPU and nvcc are used where they are.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PYCUDA := $(VENV)/.pycuda

# All that pip installs is many more modules than are imported; those are compiled when they are.
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt

# Compiled once, not by each of the hundreds of processes that the tests start (some containers switch it off).
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo test test-all test-alone test-all-alone fast lint format coverage docs bench screenshots gpu-box gpu-results clean

help:
	@echo "make demo     tune a pair of kernels with the daemon, from nothing to the answer"
	@echo "make test     lint, types and the tests, long campaigns by a sample"
	@echo "make test-all lint, types and all tests, long campaigns whole"
	@echo "make fast     the tests that a developer runs all the time"
	@echo "make lint     ruff, mypy, codespell, import-linter, the line budget"
	@echo "make format   ruff's formatter"
	@echo "make docs     docs/_build: the documentation as a site, links checked"
	@echo "make coverage the tests, and which branches they take"
	@echo "make screenshots  docs/images/ anew, from a run of its own (needs chromium)"
	@echo "make bench    benchmarks/ (figures beside the alternative, as ratios)"
	@echo "make gpu-box WHEELS=DIR   gpu-box.tar.gz: all that a GPU machine without a registry runs with one command"
	@echo "make gpu-results RESULTS=results.tar.gz   what it brought home, into benchmarks/results and the pages"

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@command -v g++ >/dev/null || { echo "g++ is missing (Debian, Ubuntu: apt install g++)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or later is needed; name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[dev]'
	@$(BIN)/python -c 'import sys; from fusiond.build import nvcc; sys.exit(nvcc.find() is None)' || $(PIP) '.[nvcc]' || \
		echo "nvcc cannot be installed here: registers and PTX stay unknown, and tests that need them are skipped" >&2
	@$(BIN)/python -c 'import sys; from fusiond.build import nvdisasm; sys.exit(nvdisasm.find() is None)' || \
		$(PIP) nvidia-cuda-nvdisasm || \
		echo "nvdisasm cannot be installed here: instructions that a GPU executes stay unknown" >&2
	@touch $(STAMP)

# Built from source, two minutes, where nvcc is; the wheel is kept in the user's cache directory (fusiond/wheels), so that
# `make clean` and other environments do not build it again. Where it cannot be built, a line says why.
$(PYCUDA): $(STAMP)
	@$(BIN)/python -m tools.pycuda_wheel
	@touch $@

demo: $(STAMP)
	@PATH="$(abspath $(BIN)):$$PATH" sh tools/demo.sh

# Lint runs beside PyCUDA's build and the tests: mypy alone would leave a core idle for half a minute.
test test-all: $(STAMP)
	@$(MAKE) --no-print-directory -j 2 lint $@-alone

# Three for two cores: many tests wait for processes of theirs.
test-alone: $(PYCUDA)
	$(BIN)/pytest -n 3 --dist worksteal -m "not campaign"

test-all-alone: $(PYCUDA)
	$(BIN)/pytest -n 2 --dist worksteal --hypothesis-profile=all

fast: $(PYCUDA)
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tools.line_budget

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

coverage: $(PYCUDA)
	$(BIN)/pytest -n 2 --dist worksteal -m "not campaign" --cov --cov-report=term --cov-report=xml

docs: $(STAMP)
	$(BIN)/python -m tools.architecture
	$(BIN)/python -m sphinx --fail-on-warning --keep-going -q docs docs/_build

bench: $(STAMP)
	$(BIN)/python -m benchmarks

screenshots: $(STAMP)
	$(BIN)/python -m tools.screenshots

# Then carry gpu-box.tar.gz to the machine with the GPU, and bring results.tar.gz home: docs/gpu-box.md
gpu-box: $(STAMP)
	rm -rf gpu-box gpu-box.tar.gz
	$(BIN)/python -m tools.gpu_box.build gpu-box --arch $(or $(ARCH),sm_90) \
		--python $(or $(PYTHON_THERE),3.12) $(if $(WHEELS),--wheels $(WHEELS))

gpu-results: $(STAMP)
	$(BIN)/python -m tools.gpu_box.results_import $(or $(RESULTS),results.tar.gz)

clean:
	rm -rf $(VENV) demo .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
