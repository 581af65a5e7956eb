# make demo and make test are all a newcomer needs; they prepare the environment first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
SAMPLE := samples/debian_text.parquet

.PHONY: demo test encoders lint types bench bench-loader bench-scale clean

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

# Minutes: all of Unicode, a million documents and more, the text in ../shared/corpus.
encoders: .venv/installed
	$(BIN)/pytest -m heavy -rs --durations=0 --durations-min=1

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed
	$(BIN)/mypy

# The peers have an environment of their own, so that the job's stays what is shipped.
.bench-venv/installed: benchmarks/requirements.txt
	@echo "preparing .bench-venv, for the peers: a minute or two"
	@$(PYTHON) -m venv .bench-venv
	@.bench-venv/bin/pip install --quiet --disable-pip-version-check -r benchmarks/requirements.txt
	@touch $@

# INPUT='a*.parquet b.parquet' ROUNDS=5 REPEAT=10 NAME=large; python -m benchmarks.run --help has more.
bench: .venv/installed .bench-venv/installed
	$(BIN)/python -m benchmarks.run $(foreach pattern,$(INPUT),--input '$(pattern)') \
	    $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(REPEAT),--repeat $(REPEAT)) $(if $(NAME),--name $(NAME))
	@$(MAKE) --no-print-directory bench-loader NAME=$(if $(NAME),$(NAME)-loader)

bench-loader: .venv/installed
	$(BIN)/python -m benchmarks.run --loader $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(NAME),--name $(NAME))

bench-scale: .venv/installed
	$(BIN)/python -m benchmarks.run --scale $(if $(NAME),--name $(NAME))

clean:
	rm -rf .venv .bench-venv demo build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .ranks
