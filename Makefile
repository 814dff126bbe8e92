# Two commands do all the set-up: `make train` runs the main job, `make test` the tests.
PYTHON ?= python3
BIN := .venv/bin
# What pip is asked for. On Linux PyPI's build is for CPUs and Nvidia GPUs; for a smaller one, of CPUs alone:
# TORCH='torch --index-url https://download.pytorch.org/whl/cpu'
TORCH ?= torch==2.13.0

# Where Python is told to keep no bytecode, every process would compile all that it imports: ten seconds for torch.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup train test check format bench clean

setup: .venv/ready

# What is not compiled now is when it is first imported, and most of it never is.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile

.venv/ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(PIP) $(TORCH)
	$(PIP) --editable '.[dev]'
	touch $@

train: setup  ## the embedded model learns two tasks, and is judged on held-out levels
	$(BIN)/turnwise train babyai-quick
	$(BIN)/turnwise eval runs/babyai-quick

test: setup  ## one process more than cores, since some tests wait for others' time limits
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses $$(($$($(BIN)/python -m turnwise.cores) + 1)) --dist worksteal --cov --cov-report=term --cov-fail-under=90

check: setup  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv runs
