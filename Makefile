# Every target works from nothing but Python, pip and make: the first one that needs it creates .venv.
#   make run     compare the two example models; prints the table, writes report.html
#   make test    the whole test suite
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA := examples/data
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq --constraint constraints.txt

.PHONY: run test fuzz native lint format docs bench wheel clean
.DELETE_ON_ERROR:

run: $(VENV)/.installed native
	$(BIN)/kullback compare $(DATA)/float32.npy $(DATA)/int8.npy --as logits \
	  --labels $(DATA)/labels.npy --cluster $(DATA)/windows.npy --html report.html

test: $(VENV)/.installed-dev native
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadgroup

# Damaged files and hostile expressions, many more than `make test` tries.
fuzz: $(VENV)/.installed-dev native
	$(BIN)/python -m tests.fuzz --files 20000 --expressions 5000

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.installed-dev native
	for script in benchmarks/bench_*.py; do $(BIN)/python $$script || exit 1; done
	$(BIN)/python benchmarks/render.py
	$(BIN)/python benchmarks/render_samples.py

WHEEL := $(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-build-isolation --no-deps --wheel-dir dist .

# Where nothing compiles, both are the pure one.
wheel: $(VENV)/.installed
	KULLBACK_NATIVE=1 $(WHEEL)
	env -u KULLBACK_NATIVE $(WHEEL)

clean:
	rm -rf $(VENV) build dist site report.html

# What `make run` needs. The build back end goes in first: an isolated build would fetch its own.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kullback needs Python 3.11 or newer; name one with make PYTHON=...")'
	@echo 'Installing into $(VENV); PyTorch is large, so this can take a few minutes.'
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(PIP) scikit-build-core cmake ninja
	$(PIP) --no-build-isolation --editable '.[cli]'
	@touch $@

# The kernels of csrc/, beside the sources; without a C++ compiler the reference does their work.
native: $(VENV)/.native

$(VENV)/.native: $(VENV)/.installed CMakeLists.txt $(wildcard csrc/*/*) src/kullback/kernels/codes.py
	@if command -v $${CXX:-c++} >/dev/null; then \
	  $(BIN)/cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
	    -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python --log-level=WARNING >/dev/null && $(BIN)/cmake --build build >/dev/null; \
	else echo 'No C++ compiler here: kullback runs without its native kernels.'; fi
	@touch $@

# What the tests, the linters and the documentation need on top.
$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@
