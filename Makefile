# make demo and make test need nothing but Python and make: each makes its own environment in .venv.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint bench docs clean

demo: .venv/base  ## Plan the paper's scenario and show the result
	@mkdir -p out
	$(BIN)/hsfl plan paper --compare --plot out/paper.png
	@echo "Above: where the paper's VGG-16 is best cut over 20 devices, 5 edge servers and the cloud, and what every other choice costs."
	@echo "out/paper.png shows the time to target for all cuts; the star is the plan."

test: .venv/dev  ## The whole test suite
	$(BIN)/python -m pytest -n auto

lint: .venv/dev  ## Style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/dev  ## Measure the planner; writes benchmarks/planner.md
	$(BIN)/python benchmarks/planner.py

docs: .venv/base  ## Write docs/scenario.md from the schema
	$(BIN)/python docs/generate.py

clean:
	rm -rf .venv out build dist

.venv/python:
	$(PYTHON) -m venv .venv
	@touch $@

.venv/base: .venv/python pyproject.toml constraints.txt
	$(INSTALL) --editable '.[plot]'
	@touch $@

.venv/dev: .venv/base
	$(INSTALL) --editable '.[dev]'
	@touch $@
