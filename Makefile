# make demo and make test are all a newcomer needs; they prepare the environment first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
SAMPLE := samples/debian_text.parquet

.PHONY: demo test lint types clean

.venv/installed: requirements.txt setup.py pyproject.toml
	@echo "preparing .venv: a minute or two"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: .venv/installed
	$(BIN)/fineshards build --input $(SAMPLE) --output demo --shard_tokens 100000 --overwrite
	$(BIN)/fineshards verify demo --sample 100
	$(BIN)/fineshards inspect demo
	$(BIN)/fineshards inspect demo --shard train/0 --document 12
	@ls -l demo/test demo/train

test: .venv/installed
	$(BIN)/pytest

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed
	$(BIN)/mypy

clean:
	rm -rf .venv demo build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
