# KappaMQ: `make demo` and `make test` are the front door; both set themselves up in .venv of this checkout.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

# Tests start hundreds of processes: what they import is compiled once.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test proofs oracle check format bench fuzz docs spark-cluster clean

COMPILED := $(wildcard src/kappamq/*/*.pyx) src/kappamq/kernel/crc31.h

$(VENV)/ready: pyproject.toml setup.py $(COMPILED)
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 is needed: install it or run 'make PYTHON=/path/to/python3.11 …'."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,spark,connect,lake,java]'
	@touch $@

demo: $(VENV)/ready
	@$(BIN)/python examples/demo.py

test: $(VENV)/ready
	@$(BIN)/python -m pytest -m "not oracle and not proof" --numprocesses 3 --dist loadscope --no-loadscope-reorder

# Minutes of kills and restarts: what `make test` has of them in short, and what it has no time for.
proofs: $(VENV)/ready
	@KAPPAMQ_KILL_ROUNDS=50 $(BIN)/python -m pytest -m "not oracle and (proof or slow)" tests/faults tests/spark tests/e2e

# The scenarios on the real RocketMQ: proves the tests, not us.
oracle: $(VENV)/ready
	@$(BIN)/python -m pytest -m oracle

# A master and two workers of Spark on free ports; ends with Ctrl-C.
spark-cluster: $(VENV)/ready
	@$(BIN)/kappamq pipeline spark-cluster

check: $(VENV)/ready
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(VENV)/ready
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(VENV)/ready
	@$(BIN)/python docs/reference/generate.py

bench: $(VENV)/ready
	@$(BIN)/python -m benchmarks

# The compiled kernel under AddressSanitizer, beside the reference, with mutated input. FUZZ_SECONDS=60 for a short run.
FUZZ_SECONDS ?= 600
fuzz: $(VENV)/ready
	@rm -rf build/fuzz build/lib.* build/temp.*
	@CFLAGS="-fsanitize=address -fno-omit-frame-pointer" LDFLAGS="-fsanitize=address" \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target build/fuzz .
	@rm -rf build/lib.* build/temp.*
	@PYTHONPATH=build/fuzz PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD="$$(cc -print-file-name=libasan.so)" \
	  $(BIN)/python -m tests.fuzz $(FUZZ_SECONDS)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
