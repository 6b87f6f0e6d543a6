# make demo and make test need nothing but Python and make: each makes its own environment in .venv.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test slow lint quick bench docs site preview protos soak netlab clean

demo: .venv/base  ## Plan the paper's system; train a small one, planned and naively, and compare
	mkdir -p out && cd out && rm -rf paper.png planned coded always rarely report
	$(BIN)/hsfl plan paper --compare --plot out/paper.png
	$(BIN)/hsfl train mnist-mini --out out/planned
	$(BIN)/hsfl train mnist-mini --out out/coded --code int4 --averaging corrected --chunks 4
	$(BIN)/hsfl train mnist-mini --out out/always --strategy fixed --cuts 3,4 --intervals 1,1,1
	$(BIN)/hsfl train mnist-mini --out out/rarely --strategy fixed --cuts 3,4 --intervals 50,50,1
	$(BIN)/hsfl report out/planned out/coded out/always out/rarely --out out/report
	@echo "First, the paper's system planned (out/paper.png: the time to target for all cuts). Then one model trained four ways on"
	@echo "the same machines, about two digits per sensor: cut and averaged as planned, the same with links of 4 bits, corrected"
	@echo "averages and mini-batches in four chunks, cut in the middle and averaged after every round, or after every 50. Open"
	@echo "out/report/report.html: accuracy against the time and traffic of those machines."

test: .venv/dev  ## The whole test suite
	$(BIN)/python -m pytest -n auto

slow: .venv/dev  ## The tests that are left out of make test, because they take minutes
	$(BIN)/python -m pytest -n auto -m slow

lint: .venv/dev  ## Style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

quick: .venv/dev  ## Every figure of the paper at its smallest, and whether its results have the right shape
	$(BIN)/hsfl reproduce all --quick --out out/quick
	$(BIN)/python -m pytest tests/experiments/quick.py

bench: .venv/dev  ## Measure the planner; writes benchmarks/planner.md
	$(BIN)/python benchmarks/planner.py

docs: .venv/base  ## Write docs/scenario.md from the schema, docs/results.md from experiments/, and the pictures of docs/
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/pictures.py

site: .venv/docs  ## The documentation site, in build/site; a link that leads nowhere fails
	$(BIN)/python docs/build_site.py

preview: .venv/docs  ## The site at http://127.0.0.1:8000, built again whenever a page changes
	$(BIN)/python docs/build_site.py --preview

protos: .venv/dev  ## Write the Python side of the messages in src/hsfl/distributed/wire.proto
	cd src && ../$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. hsfl/distributed/wire.proto

soak: .venv/dev  ## Kill machines of a run 200 times, and actors and nodes of a Ray cluster; the weights stay the same
	$(BIN)/python -m pytest -s tests/distributed/soak.py tests/distributed/ray_soak.py

netlab: .venv/dev  ## Machines on links of the scenario's rates: measured times against planned ones; as root
	$(BIN)/python benchmarks/netlab.py

clean:
	rm -rf .venv out build dist

.venv/python:
	$(PYTHON) -m venv .venv
	@touch $@

.venv/base: .venv/python pyproject.toml constraints.txt
	$(INSTALL) --editable '.[torch,plot,run]'
	@touch $@

.venv/docs: .venv/base
	$(INSTALL) --editable '.[docs]'
	@touch $@

.venv/dev: .venv/base
	$(INSTALL) --editable '.[dev]'
	@touch $@
