# Every target works from nothing but Python, pip and make: the first one that needs it creates .venv.
#   make run     compare the two example models; prints the table, writes report.html
#   make test    every behavior, and a tenth of each sweep; `make test-all` is everything
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA := examples/data
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq --constraint constraints.txt

.PHONY: run test sweeps heavy test-all check fuzz mutate native sanitize lint format docs bench gpu wheel clean
.DELETE_ON_ERROR:

run: $(VENV)/.installed native
	$(BIN)/kullback compare $(DATA)/float32.npy $(DATA)/int8.npy --as logits \
	  --labels $(DATA)/labels.npy --cluster $(DATA)/windows.npy --tokens $(DATA)/bytes.json --html report.html

# tests/parts.py says which test belongs to which part; sweeps are products over registries, and heavy tests build wheels,
# compile, start a JVM, servers or a browser, train, or run the interpreter of GPU code.
# One thread for each of the workers, which share the cores, and no module is compiled twice.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4
unexport PYTHONDONTWRITEBYTECODE
test: $(VENV)/.installed-dev native
	$(PYTEST) --part quick

sweeps: $(VENV)/.installed-dev native
	$(PYTEST) --part sweeps

heavy: $(VENV)/.installed-heavy native
	$(PYTEST) --part heavy

test-all: $(VENV)/.installed-heavy native
	$(PYTEST)

# One file: its lint and types, the order of imports, and all tests of its room. make check FILE=src/kullback/samples.py
check: $(VENV)/.installed-dev native
	$(BIN)/python .ci/check.py $(FILE)

# The tests of the native kernels with a library, built aside, that stops at the first undefined operation. Its loops are
# not vectorized, so that long sums are less exact: without vectorization, and without sanitizers, the same tests of six
# digits fail. Its symbols are not those of a release.
SANITIZED := build/sanitize
sanitize: $(VENV)/.installed-dev
	rm -rf $(SANITIZED)/src && mkdir -p $(SANITIZED) && cp -r src $(SANITIZED)/src
	$(CONFIGURE) -B $(SANITIZED)/build -DKULLBACK_SANITIZE=ON -DKULLBACK_PACKAGE=$(CURDIR)/$(SANITIZED)/src/kullback
	$(BIN)/cmake --build $(SANITIZED)/build
	PYTHONPATH=$(CURDIR)/$(SANITIZED)/src $(BIN)/python -c 'import kullback; assert "/$(SANITIZED)/" in kullback.__file__'
	PYTHONPATH=$(CURDIR)/$(SANITIZED)/src LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" \
	  ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0 UBSAN_OPTIONS=print_stacktrace=1 \
	  $(BIN)/python -m pytest -q -p no:cacheprovider -k "not six_digits and not symbol" tests/kernels/native tests/kernels/test_error_budget.py

# Damaged files and profiles and hostile expressions, many more than `make test` tries.
fuzz: $(VENV)/.installed-dev native
	$(BIN)/python -m tests.fuzz --files 20000 --references 20000 --profiles 5000 --top-k 20000 --states 20000 --expressions 5000

# Mutants of the divergences, the reference kernels, closed forms and intervals: hours, unless ARGS says less, as in
# make mutate ARGS='--parts power --seconds 300'.
mutate: $(VENV)/.installed-dev
	$(PIP) cosmic-ray
	$(BIN)/python .ci/mutate.py $(ARGS)

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
	$(BIN)/python benchmarks/gpu_cost.py
	$(BIN)/python benchmarks/render_samples.py
	$(BIN)/python benchmarks/render_fit.py

# Is kullback right on the GPU of this machine, and how fast? At most ten minutes. The results become a part of the page of
# benchmarks. ARGS can name a part: make gpu ARGS='--part parity'. Without a GPU, a line says so.
gpu: $(VENV)/.installed
	@$(BIN)/python benchmarks/gpu.py $(ARGS); status=$$?; $(BIN)/python benchmarks/render.py && exit $$status

WHEEL := $(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-build-isolation --no-deps

# What a release uploads: the pure wheel, the sources and, where a compiler is, the wheel of this platform. On Linux
# that one is made to run wherever manylinux_2_28 does.
wheel: $(VENV)/.installed-dev
	rm -rf dist build/wheel
	KULLBACK_NATIVE=0 $(WHEEL) --wheel-dir dist .
	$(BIN)/python -m build --sdist --no-isolation --outdir dist >/dev/null
	@if ! command -v $${CXX:-c++} >/dev/null; then echo 'No C++ compiler here: no native wheel.'; \
	elif [ "$$(uname -s)" != Linux ]; then KULLBACK_NATIVE=1 $(WHEEL) --wheel-dir dist .; \
	else KULLBACK_NATIVE=1 CMAKE_ARGS=-DKULLBACK_MANYLINUX=ON $(WHEEL) --wheel-dir build/wheel . && \
	  PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --exclude libtorch_cpu.so --only-plat \
	    --plat manylinux_2_28_$$(uname -m) --wheel-dir dist build/wheel/*.whl; fi
	$(BIN)/twine check --strict dist/*

clean:
	rm -rf $(VENV) build dist site report.html

# The finder that scikit-build-core 1 adds to an editable install would come before PYTHONPATH, and so hide the copy that
# `make sanitize` tests. A path is enough.
PATH_ALONE = sed -i.bak '/^import /d' $(VENV)/lib/python3.*/site-packages/_editable_skbc_kullback.pth && \
  rm $(VENV)/lib/python3.*/site-packages/_editable_skbc_kullback.pth.bak

# What `make run` needs. The build back end goes in first: an isolated build would fetch its own.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kullback needs Python 3.11 or newer; name one with make PYTHON=...")'
	@echo 'Installing into $(VENV); PyTorch is large, so this can take a few minutes.'
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(PIP) scikit-build-core hatch-fancy-pypi-readme cmake ninja
	$(PIP) --no-build-isolation --editable '.[cli]'
	@$(PATH_ALONE)
	@touch $@

CONFIGURE := $(BIN)/cmake -S . -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
  -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python --log-level=WARNING

# The kernels of csrc/, beside the sources; without a C++ compiler the reference does their work.
native: $(VENV)/.native

$(VENV)/.native: $(VENV)/.installed CMakeLists.txt $(wildcard csrc/*/*) src/kullback/kernels/codes.py
	@if command -v $${CXX:-c++} >/dev/null; then \
	  { $(CONFIGURE) -B build && $(BIN)/cmake --build build; } >$(VENV)/native.log 2>&1 || { cat $(VENV)/native.log; exit 1; }; \
	else echo 'No C++ compiler here: kullback runs without its native kernels.'; fi
	@touch $@

# What the tests, the linters and the documentation need on top.
$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --no-build-isolation --editable '.[dev]'
	@$(PATH_ALONE)
	@touch $@

# llama.cpp, which runs the GGUF files of the heavy tests, is built from source: some minutes, without its image models
# less. Where that fails, those tests report themselves as not run.
$(VENV)/.installed-heavy: $(VENV)/.installed-dev
	@if command -v $${CXX:-c++} >/dev/null; then CMAKE_ARGS=-DLLAVA_BUILD=OFF $(PIP) 'llama-cpp-python[server]' || \
	  echo 'llama.cpp could not be built here.'; fi
	@touch $@
