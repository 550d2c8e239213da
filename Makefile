# Every target works from nothing but Python, pip and make: the first one that needs it creates .venv.
#   make run     compare the two example models; prints the table, writes report.html
#   make test    the whole test suite
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA := examples/data
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq --constraint constraints.txt

.PHONY: run test lint format docs bench clean
.DELETE_ON_ERROR:

run: $(VENV)/.installed
	$(BIN)/kullback compare $(DATA)/float32.npy $(DATA)/int8.npy --as logits \
	  --labels $(DATA)/labels.npy --cluster $(DATA)/windows.npy --html report.html

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n auto --maxprocesses 4

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.installed-dev
	for script in benchmarks/bench_*.py; do $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) build dist site report.html

# What `make run` needs. The build back end goes in first: an isolated build would fetch its own.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kullback needs Python 3.11 or newer; name one with make PYTHON=...")'
	@echo 'Installing into $(VENV); PyTorch is large, so this can take a few minutes.'
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(PIP) scikit-build-core
	$(PIP) --no-build-isolation --editable '.[cli]'
	@touch $@

# What the tests, the linters and the documentation need on top.
$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@
