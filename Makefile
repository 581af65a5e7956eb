# `make` lists the targets. Each prepares the environment that it needs.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# pip takes minutes for what uv does in seconds.
UV := $(BIN)/uv
# uv compiles only when asked to; without, each process of the tests would compile Beam again, for seconds.
INSTALL := $(UV) pip install --quiet --compile-bytecode
unexport PYTHONDONTWRITEBYTECODE
SAMPLE := samples/debian_text.parquet

.PHONY: help api pictures demo test quick test-cloud test-growing test-recipes test-kills test-airflow test-curation
.PHONY: test-torch test-readers test-engines encoders lint types bench bench-loader bench-curation bench-scale template clean

help: ## list the targets
	@echo "targets:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s%s\n", $$1, $$2}' Makefile

.venv/installed: requirements.txt setup.py pyproject.toml
	@echo "preparing .venv: Apache Beam, the tokenizers and what the tests need; 180 packages, 1.7 GB,"
	@echo "downloaded once; about a minute"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check uv==0.13.9
	@$(INSTALL) --python $(BIN)/python -e '.[dev]' -c requirements.txt
	@touch $@

demo: .venv/installed ## build a dataset from the sample, verify it, and show a document
	$(BIN)/fineshards build --input $(SAMPLE) --output demo --shard_tokens 100k --overwrite
	$(BIN)/fineshards verify demo --sample 100
	$(BIN)/fineshards inspect demo
	$(BIN)/fineshards inspect demo --shard train/1 --document 164
	@echo
	@echo "The dataset is in demo/, the command line in $(BIN)/. What to do next:"
	@echo "    $(BIN)/fineshards build --input 'data/*.parquet' --output out   # your own files"
	@echo "    $(BIN)/fineshards help build                                    # all flags"
	@echo "    make quick                                                     # the quick tests"

test: .venv/installed ## run all tests but those of the targets below
	@echo "all tests but those of the targets below, in three processes: about ten minutes on two cores"
	@echo "(make quick runs a part of them in a minute)"
	$(BIN)/pytest

# What each room does, on files and records, and builds of some documents.
QUICK := $(addprefix tests/test_,apportionment.py checksums.py counts.py documents.py find.py \
    inspect.py jsonl.py layout.py manifest.py npy.py parquet.py permutation.py plan.py rejected.py \
    rooms.py status.py token_dataset.py)

quick: .venv/installed ## run a part of the tests that takes about a minute
	$(BIN)/pytest $(QUICK)

test-cloud: .venv/installed ## test jobs on gs://, s3:// and Dataflow, on servers of the tests' own
	$(BIN)/pytest -m cloud

test-growing: .venv/installed ## test shuffles, appends, redactions, repairs and leaks
	$(BIN)/pytest -m "growing and not kills and not cloud"

test-recipes: .venv/installed ## test builds, appends and repairs with recipes
	$(BIN)/pytest -m "curation and not kills and not cloud and not engines"

test-kills: .venv/installed ## kill builds again and again
	$(BIN)/pytest -m kills -rs --durations=0 --durations-min=10

# Supported beside the Python of .venv.
PYTHONS := 3.12 3.13
.PHONY: test-package test-pythons $(PYTHONS:%=test-python-%)

# Builds the sdist and the wheel, and installs them into new environments. Needs a package index.
test-package: .venv/installed ## test the sdist and the wheel in new environments
	$(BIN)/pytest -m package -n0 tests/test_package.py

# Each other Python runs the tests of builds, restarts and readers, and builds the sample. Only the manifest, which
# names the Python, may differ from what .venv builds. PYENV_VERSION lets pyenv's python3.12 run a 3.12 that is
# installed but not activated.
test-pythons: .venv/installed ## test on Python 3.12 and 3.13, where they are installed
	@for version in $(PYTHONS); do \
	    if PYENV_VERSION=$$version python$$version -c '' 2>/dev/null; \
	    then $(MAKE) --no-print-directory test-python-$$version || exit 1; \
	    else echo "python$$version is not on this machine: not tested"; fi; \
	done

$(PYTHONS:%=test-python-%): test-python-%: .py%-venv/installed
	.py$*-venv/bin/pytest -k 'not kill' tests/test_build.py tests/test_restart.py tests/test_verify.py \
	    tests/test_batch_loader.py tests/test_mixture.py
	@rm -rf .py$*-venv/builds
	$(BIN)/fineshards build --input $(SAMPLE) --output .py$*-venv/builds/here --shard_tokens 100000
	.py$*-venv/bin/fineshards build --input $(SAMPLE) --output .py$*-venv/builds/there --shard_tokens 100000
	diff -r --exclude manifest.json .py$*-venv/builds/here .py$*-venv/builds/there

$(PYTHONS:%=.py%-venv/installed): .py%-venv/installed: .venv/installed
	@echo "preparing .py$*-venv: less than a minute"
	@$(UV) venv --quiet --clear .py$*-venv \
	    --python "$$(PYENV_VERSION=$* python$* -c 'import sys; print(sys.executable)')"
	@$(INSTALL) --python .py$*-venv/bin/python -e '.[build,gcs,s3,test]' -c requirements.txt
	@touch $@

# Airflow has an environment of its own, for its hundreds of packages.
.airflow-venv/installed: tests/airflow/requirements.txt tests/airflow/constraints.txt | .venv/installed
	@echo "preparing .airflow-venv: 1.6 GB, less than a minute"
	@$(PYTHON) -m venv .airflow-venv
	@$(INSTALL) --python .airflow-venv/bin/python \
	    -r tests/airflow/requirements.txt -c tests/airflow/constraints.txt
	@touch $@

test-airflow: .venv/installed .airflow-venv/installed ## test the Composer DAG in a real Airflow (1.6 GB)
	.airflow-venv/bin/pytest -c tests/airflow/pytest.ini tests/airflow

# datatrove, the oracle, has an environment of its own: its libraries are old ones.
.curation-venv/installed: tests/curation/requirements.txt requirements.txt pyproject.toml | .venv/installed
	@echo "preparing .curation-venv: a minute"
	@$(PYTHON) -m venv .curation-venv
	@$(INSTALL) --python .curation-venv/bin/python -e '.[curation,test]' -r tests/curation/requirements.txt
	@# It has the files of fasttext-predict too, and more; datatrove needs those.
	@$(INSTALL) --python .curation-venv/bin/python --reinstall --no-deps fasttext-numpy2-wheel
	@touch $@

# FINESHARDS_ALL_DOCUMENTS=1 compares all documents of ../shared instead of a part: hours.
test-curation: .curation-venv/installed ## compare the steps of recipes with datatrove's
	.curation-venv/bin/pytest -c tests/curation/pytest.ini tests/curation

# torch has an environment of its own, for its gigabytes of libraries. Its tests are not in tests/torch, which Python
# would import as torch.
WITH_TORCH := tests/with_torch
.torch-venv/installed: $(addprefix $(WITH_TORCH)/,requirements.txt excludes.txt) requirements.txt pyproject.toml \
    | .venv/installed
	@echo "preparing .torch-venv: torch, and what trains with it; 5 GB, downloaded once; a minute or two"
	@$(PYTHON) -m venv .torch-venv
	@$(INSTALL) --python .torch-venv/bin/python -e '.[build,gcs,s3,test]' -r $(WITH_TORCH)/requirements.txt \
	    --excludes $(WITH_TORCH)/excludes.txt -c requirements.txt
	@touch $@

test-torch: .torch-venv/installed ## test the loader and examples/ with torch and its trainers (5 GB)
	.torch-venv/bin/pytest -c $(WITH_TORCH)/pytest.ini $(WITH_TORCH)

# The libraries of trainers, which read what `fineshards export` writes.
READERS := tests/readers
.readers-venv/installed: $(addprefix $(READERS)/,requirements.txt readers.txt) $(WITH_TORCH)/excludes.txt \
    requirements.txt pyproject.toml | .venv/installed
	@echo "preparing .readers-venv: torch, and libraries of trainers; 5 GB, downloaded once; a minute or two"
	@$(PYTHON) -m venv .readers-venv
	@$(INSTALL) --python .readers-venv/bin/python -e '.[build,test]' -r $(READERS)/requirements.txt \
	    --excludes $(WITH_TORCH)/excludes.txt -c requirements.txt
	@$(INSTALL) --python .readers-venv/bin/python --no-deps -r $(READERS)/readers.txt
	@touch $@

test-readers: .readers-venv/installed ## read exports with the libraries of trainers (5 GB)
	.readers-venv/bin/pytest -c $(READERS)/pytest.ini $(READERS)

# Minutes: all of Unicode, a million documents and more, the text in ../shared/corpus.
encoders: .venv/installed ## prove the fast tokenizers equal to the reference: minutes
	$(BIN)/pytest -m heavy -rs --durations=0 --durations-min=1

# Prism and Flink, fetched once into ~/.cache/fineshards/engines; skipped where they cannot be fetched.
test-engines: .venv/installed ## test on real Prism and Flink: minutes
	$(BIN)/pytest -m engines -n0 -rs --durations=0 --durations-min=1

# The API reference, docs/api.md, from the docstrings, and docs/recipe.schema.json from the steps.
api: .venv/installed ## write docs/api.md and the schema of recipes from the docstrings
	$(BIN)/python docs/make_api.py
	$(BIN)/python docs/make_schema.py

# The charts, from the JSON of the results.
pictures: .venv/installed ## draw the charts
	$(BIN)/python -m benchmarks.chart

lint: .venv/installed ## check the code with ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy does not find folders that are installed under another name; the links have those names.
types: .venv/installed ## check the types with mypy
	@rm -rf .types && mkdir -p .types/fineshards
	@ln -s $(CURDIR)/benchmarks .types/
	@ln -s $(CURDIR)/fineshards/* $(CURDIR)/pipeline $(CURDIR)/transforms .types/fineshards/
	$(BIN)/mypy

# What users install for local builds, and the peers. In .venv, Beam also imports Google's libraries.
.bench-venv/installed: requirements.txt benchmarks/requirements.txt pyproject.toml | .venv/installed
	@echo "preparing .bench-venv, for the job and its peers: a minute"
	@$(PYTHON) -m venv .bench-venv
	@$(INSTALL) --python .bench-venv/bin/python -e '.[build]' -r benchmarks/requirements.txt -c requirements.txt
	@touch $@

# INPUT='a*.parquet b.parquet' ROUNDS=5 REPEAT=10 NAME=large; python -m benchmarks.run --help has more.
bench: .venv/installed .bench-venv/installed ## compare the job with its peers: many minutes
	.bench-venv/bin/python -m benchmarks.run $(foreach pattern,$(INPUT),--input '$(pattern)') \
	    $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(REPEAT),--repeat $(REPEAT)) $(if $(NAME),--name $(NAME))
	@$(MAKE) --no-print-directory bench-loader NAME=$(if $(NAME),$(NAME)-loader)

# In the environment of torch, whose loaders are peers.
bench-loader: .torch-venv/installed ## compare the loader with plain loops and other loaders
	.torch-venv/bin/python -m benchmarks.run --loader $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(NAME),--name $(NAME))

# INPUT='a.parquet b.parquet'; python -m benchmarks.curation --help has more.
bench-curation: .curation-venv/installed ## compare steps of recipes with datatrove's
	.curation-venv/bin/python -m benchmarks.curation $(if $(INPUT),$(INPUT),$(firstword \
	    $(wildcard ../shared/corpus/crawl-*.parquet) $(SAMPLE)))
	.curation-venv/bin/python -m benchmarks.curation_scale

bench-scale: .venv/installed ## plan 15 trillion tokens, with made-up counts
	$(BIN)/python -m benchmarks.run --scale $(if $(NAME),--name $(NAME))
	$(BIN)/python -m benchmarks.curation_scale --plan

# For Dataflow (docs/dataflow.md): make template PROJECT=p REGION=us-central1 BUCKET=b prints the commands; RUN=build
# runs the first two, RUN=launch the last. Also IMAGE=, TEMPLATE=, and for the launch INPUT= or DATASET= and CONFIG=,
# OUTPUT=, JOB=, MACHINE=, WORKERS=, DISK=, SERVICE_ACCOUNT=, PARAMETERS='shard_tokens=1000000 dtype=auto', FLAGS= of gcloud.
PROJECT ?= PROJECT
REGION ?= us-central1
BUCKET ?= BUCKET
IMAGE ?= $(REGION)-docker.pkg.dev/$(PROJECT)/fineshards/fineshards:$(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
TEMPLATE ?= gs://$(BUCKET)/templates/fineshards.json
DATASET ?= $(if $(INPUT),,HuggingFaceFW/fineweb-edu)
CONFIG ?= $(if $(INPUT),,sample-10BT)
OUTPUT ?= gs://$(BUCKET)/datasets/$(if $(CONFIG),$(CONFIG),fineshards)
JOB ?= fineshards-$(shell basename '$(OUTPUT)' | tr 'A-Z_.' 'a-z--')
MACHINE ?= n2-standard-4
WORKERS ?= 10
DISK ?= 50
GCLOUD ?= gcloud

define TEMPLATE_BUILD
$(GCLOUD) builds submit . --project=$(PROJECT) --region=$(REGION) --tag=$(IMAGE)
$(GCLOUD) dataflow flex-template build $(TEMPLATE) --project=$(PROJECT) --image=$(IMAGE) \
    --sdk-language=PYTHON --metadata-file=templates/metadata.json
endef

define TEMPLATE_LAUNCH
$(GCLOUD) dataflow flex-template run $(JOB) --project=$(PROJECT) --region=$(REGION) \
    --template-file-gcs-location=$(TEMPLATE) \
    --staging-location=gs://$(BUCKET)/staging --temp-location=gs://$(BUCKET)/temp \
    --worker-machine-type=$(MACHINE) --max-workers=$(WORKERS) \
    $(if $(SERVICE_ACCOUNT),--service-account-email=$(SERVICE_ACCOUNT)) $(FLAGS) \
    $(foreach parameter,$(GIVEN) $(PARAMETERS),'--parameters=$(parameter)')
endef
GIVEN = sdk_container_image=$(IMAGE) $(if $(INPUT),input=$(INPUT)) $(if $(DATASET),dataset=$(DATASET)) \
    $(if $(CONFIG),dataset_config=$(CONFIG)) output=$(OUTPUT) disk_size_gb=$(DISK)
export TEMPLATE_BUILD TEMPLATE_LAUNCH

template: ## print the commands that build and launch a Dataflow template
ifeq ($(RUN),build)
	@set -ex; eval "$$TEMPLATE_BUILD"
else ifeq ($(RUN),launch)
	@set -ex; eval "$$TEMPLATE_LAUNCH"
else
	@printf '%s\n\n' "$$TEMPLATE_BUILD" "$$TEMPLATE_LAUNCH" | sed -E "s/ +('?--)/ \\\\\n    \1/g"
endif

clean: ## delete what the targets have made
	rm -rf .venv .types .airflow-venv .bench-venv .curation-venv .readers-venv .torch-venv .py*-venv demo build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .ranks
