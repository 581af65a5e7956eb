# `make` lists the targets. Each prepares the environment that it needs.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# pip takes minutes for what uv does in seconds.
UV := $(BIN)/uv
# uv compiles only when asked to; without, each process of the tests would compile Beam again, for seconds.
INSTALL := $(UV) pip install --quiet --compile-bytecode
unexport PYTHONDONTWRITEBYTECODE
SAMPLE := samples/debian_text.parquet
CHECK := $(BIN)/check-jsonschema --quiet --builtin-schema vendor

# Every target with a description.
.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*## .*/\1/p' Makefile)

##@ First steps

# "##@ " begins a group of targets, "## " says what one does, needs and takes.
help: ## list the targets, with what they need and take
	@echo "make TARGET, with Python 3.11. The first one prepares .venv, from PyPI, in a minute."
	@echo "In brackets: what else a target downloads or needs; minutes on two cores, once prepared."
	@awk -F ':.*## ' '/^##@ / {printf "\n%s:\n", substr($$0, 5)} \
	    /^[a-z-]+:.*## / {printf "  %-16s%s\n", $$1, $$2}' Makefile

# What a build needs; `.venv/installed` adds what the tests need.
.venv/built: requirements.txt setup.py pyproject.toml
	@echo "preparing .venv: Apache Beam and the tokenizers; 77 packages, 0.7 GB, downloaded once"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check uv==0.13.9
	@$(INSTALL) --python $(BIN)/python -e '.[build]' -c requirements.txt
	@touch $@

.venv/installed: .venv/built
	@echo "adding what the tests need; 270 packages and 2.4 GB in all, downloaded once; about a minute"
	@$(INSTALL) --python $(BIN)/python -e '.[dev]' -c requirements.txt
	@touch $@

demo: .venv/built ## build a dataset from the sample, verify it, show a document and a report (1 min)
	$(BIN)/fineshards build --input $(SAMPLE) --output demo --shard_tokens 100k --overwrite
	$(BIN)/fineshards verify demo --sample 100%
	$(BIN)/fineshards inspect demo
	$(BIN)/fineshards inspect demo --shard train/1 --document 164
	$(BIN)/fineshards report demo
	@echo
	@echo "The dataset is in demo/, the command line in $(BIN)/. What to do next:"
	@echo "    open demo-report.html in a browser       # the dataset, to look at"
	@echo "    $(BIN)/fineshards build --input 'data/*.parquet' --output out"
	@echo "    $(BIN)/fineshards help build all      # all flags"
	@echo "    make quick                               # the quick tests"

# What each room does, on files and records, and builds of some documents.
QUICK := $(addprefix tests/,test_rooms.py shards inspection/test_find.py inspection/test_inspect.py \
    job_status/test_status.py loader/test_permutation.py loader/test_token_dataset.py \
    loader/mixing/test_apportionment.py sources/test_jsonl.py sources/test_parquet.py)

quick: .venv/installed ## run a part of the tests (1 min)
	$(BIN)/pytest $(QUICK)

clean: ## delete all that the targets have made
	rm -rf .venv .types .airflow-venv .bench-venv .browser-venv .curation-venv .levanter-venv .readers-venv .site-venv .torch-venv .py*-venv .site site demo demo-report.html build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .ranks

##@ Tests

# FINESHARDS_SLICE: tests/support/slices.py.
test: .venv/installed ## run all tests but those below, and a fifth of the long ones (at most 13 min)
	@echo "all tests but those of the targets below, and of the long ones the fifth that this commit chooses;"
	@echo "(make quick: one minute; FINESHARDS_SLICE=0/1 make test: all, 13 minutes on two cores)"
	FINESHARDS_SLICE=$${FINESHARDS_SLICE-$(if $(filter test-all,$(MAKECMDGOALS)),0/1,commit)} $(BIN)/pytest

test-long: .venv/installed ## test stores on servers of the tests, growth and recipes (15 min)
	$(BIN)/pytest -m "(cloud or growing or curation) and not kills and not engines"

test-kills: .venv/installed ## kill builds again and again (20 min)
	$(BIN)/pytest -m kills -rs --durations=0 --durations-min=10

# One run, so that what waits and what computes are side by side.
test-slice: .venv/installed ## run test, and a fifth of test-long and test-kills (12 min)
	FINESHARDS_SLICE=$${FINESHARDS_SLICE-commit} $(BIN)/pytest -m "not (engines or heavy or package or slurm)" -rs

EVERYTHING := lint types site demo test test-long test-kills test-package test-pythons test-airflow \
    test-engines test-slurm test-readers test-levanter test-browser test-curation test-torch encoders
test-all: $(EVERYTHING) ## run all tests and checks (hours)

# Another SEED tries other moments and other bytes.
SEED ?= 1
storms: .venv/installed ## kill all commands 1,000 times, damage datasets 10,000 times, records 300 times, and requests 1,000 times (1 h)
	PYTHONPATH=tests $(BIN)/python -m storms.kills $(SEED) $(or $(KILLS),1000)
	PYTHONPATH=tests $(BIN)/python -m storms.damages $(SEED) $(or $(DAMAGES),10000)
	PYTHONPATH=tests $(BIN)/python -m storms.digits $(SEED) $(or $(DIGITS),300)
	PYTHONPATH=tests $(BIN)/python -m storms.faults $(SEED) $(or $(FAULTS),500)

# Supported beside the Python of .venv.
PYTHONS := 3.12 3.13
.PHONY: $(PYTHONS:%=test-python-%)

# Builds the sdist and the wheel, and installs them into new environments. Needs a package index.
test-package: .venv/installed ## test the sdist and the wheel, installed (PyPI; 1 min)
	$(BIN)/pytest -m package -n0 tests/test_package.py

# Each other Python runs the tests of builds, restarts and readers, and builds the sample. Only the manifest, which
# names the Python, may differ from what .venv builds. PYENV_VERSION lets pyenv's python3.12 run a 3.12 that is
# installed but not activated.
test-pythons: .venv/installed ## test on Python 3.12 and 3.13, where they are installed (PyPI; some min)
	@for version in $(PYTHONS); do \
	    if PYENV_VERSION=$$version python$$version -c '' 2>/dev/null; \
	    then $(MAKE) --no-print-directory test-python-$$version || exit 1; \
	    else echo "python$$version is not on this machine: not tested"; fi; \
	done

$(PYTHONS:%=test-python-%): test-python-%: .py%-venv/installed
	.py$*-venv/bin/pytest -k 'not kill' tests/pipeline/test_build.py tests/pipeline/test_restart.py tests/verification/test_verify.py \
	    tests/loader/test_batch_loader.py tests/loader/test_loader_state.py tests/loader/mixing/test_mixture*.py
	@rm -rf .py$*-venv/builds
	$(BIN)/fineshards build --input $(SAMPLE) --output .py$*-venv/builds/here --shard_tokens 100000
	.py$*-venv/bin/fineshards build --input $(SAMPLE) --output .py$*-venv/builds/there --shard_tokens 100000
	diff -r --exclude manifest.json --exclude 0001.json .py$*-venv/builds/here .py$*-venv/builds/there

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

test-airflow: .venv/installed .airflow-venv/installed ## test the Composer DAG in a real Airflow (PyPI, 1.6 GB; some min)
	.airflow-venv/bin/pytest -c tests/airflow/pytest.ini tests/airflow

# datatrove, the oracle, has an environment of its own: its libraries are old ones.
.curation-venv/installed: tests/with_datatrove/requirements.txt requirements.txt pyproject.toml | .venv/installed
	@echo "preparing .curation-venv: a minute"
	@$(PYTHON) -m venv .curation-venv
	@$(INSTALL) --python .curation-venv/bin/python -e '.[languages,test]' -r tests/with_datatrove/requirements.txt
	@# It has the files of fasttext-predict too, and more; datatrove needs those.
	@$(INSTALL) --python .curation-venv/bin/python --reinstall --no-deps fasttext-numpy2-wheel
	@touch $@

# FINESHARDS_ALL_DOCUMENTS=1 compares all documents of ../shared instead of a part: hours.
test-curation: .curation-venv/installed ## compare the steps of recipes with datatrove's (PyPI; 10 min)
	.curation-venv/bin/pytest -c tests/with_datatrove/pytest.ini tests/with_datatrove

# torch has an environment of its own, for its gigabytes of libraries. Its tests are not in tests/torch, which Python
# would import as torch.
WITH_TORCH := tests/with_torch
.torch-venv/installed: $(addprefix $(WITH_TORCH)/,requirements.txt peers.txt excludes.txt) requirements.txt pyproject.toml \
    | .venv/installed
	@echo "preparing .torch-venv: torch, and what trains with it; 5 GB, downloaded once; a minute or two"
	@$(PYTHON) -m venv .torch-venv
	@$(INSTALL) --python .torch-venv/bin/python -e '.[build,gcs,s3,test]' -r $(WITH_TORCH)/requirements.txt \
	    $(if $(shell command -v nvidia-smi),,--excludes $(WITH_TORCH)/excludes.txt) -c requirements.txt
	@$(INSTALL) --python .torch-venv/bin/python --no-deps -r $(WITH_TORCH)/peers.txt
	@touch $@

test-torch: .torch-venv/installed ## test the loader and examples/ with torch (PyPI, 5 GB; some min)
	.torch-venv/bin/pytest -c $(WITH_TORCH)/pytest.ini $(WITH_TORCH)

# The libraries of trainers, which read what `fineshards export` writes.
READERS := tests/readers
.readers-venv/installed: $(addprefix $(READERS)/,requirements.txt readers.txt later_python.txt) $(WITH_TORCH)/excludes.txt \
    requirements.txt pyproject.toml | .venv/installed
	@echo "preparing .readers-venv: torch, and libraries of trainers; 5 GB, downloaded once; a minute or two"
	@$(PYTHON) -m venv .readers-venv
	@$(INSTALL) --python .readers-venv/bin/python -e '.[array_record,build,test]' -r $(READERS)/requirements.txt \
	    --excludes $(WITH_TORCH)/excludes.txt -c requirements.txt
	@$(INSTALL) --python .readers-venv/bin/python --no-deps -r $(READERS)/readers.txt
	@$(INSTALL) --python .readers-venv/bin/python --no-deps --python-version 3.12 -r $(READERS)/later_python.txt
	@touch $@

test-readers: .readers-venv/installed ## read exports with the libraries of trainers (PyPI, 5 GB; 5 min)
	.readers-venv/bin/pytest -c $(READERS)/pytest.ini $(READERS)

# Levanter's dependencies exclude versions that the readers have. It brings jax.
WITH_LEVANTER := tests/with_levanter
.levanter-venv/installed: $(WITH_LEVANTER)/requirements.txt pyproject.toml | .venv/installed
	@echo "preparing .levanter-venv: 2 GB, downloaded once; a minute"
	@$(PYTHON) -m venv .levanter-venv
	@$(INSTALL) --python .levanter-venv/bin/python -e '.[build]' -r $(WITH_LEVANTER)/requirements.txt
	@touch $@

test-levanter: .levanter-venv/installed ## test the loader in Levanter (PyPI, 2 GB; 1 min)
	.levanter-venv/bin/pytest -c $(WITH_LEVANTER)/pytest.ini $(WITH_LEVANTER)

# Debian's chromium is not on PyPI; the driver is.
BROWSER := tests/browser
.browser-venv/installed: $(BROWSER)/requirements.txt requirements.txt pyproject.toml | .venv/installed
	@echo "preparing .browser-venv: half a minute"
	@$(PYTHON) -m venv .browser-venv
	@$(INSTALL) --python .browser-venv/bin/python -e '.[build,gcs,test]' -r $(BROWSER)/requirements.txt \
	    -c requirements.txt
	@touch $@

test-browser: .browser-venv/installed site ## test the pages in a browser (PyPI, Debian's chromium; 1 min)
	.browser-venv/bin/pytest -c $(BROWSER)/pytest.ini $(BROWSER)

# Minutes: all of Unicode, a million documents and more, the text in ../shared/corpus.
encoders: .venv/installed ## prove the fast tokenizers equal to the reference (PyPI; some min)
	$(BIN)/pytest -m heavy -rs --durations=0 --durations-min=1

# Prism and Flink, fetched once into ~/.cache/fineshards/engines; skipped where they cannot be fetched.
test-engines: .venv/installed ## test on real Prism and Flink (Go, Maven, Java 11 or 17; 5 min)
	$(BIN)/pytest -m engines -n0 -rs --durations=0 --durations-min=1

# A cluster of three nodes on this machine, if it has Slurm and this is root; skipped otherwise.
test-slurm: .venv/installed ## test shares on a real Slurm (Debian's slurm-wlm and munge, root; 3 min)
	$(BIN)/pytest -m slurm -n0 -rs --durations=0 --durations-min=1 tests/pipeline/runners/test_slurm.py

##@ Documentation

# Editors read it from the repository.
api: .venv/installed ## write the schemas of recipes and manifests from their types
	$(BIN)/python docs/make_schema.py
	$(BIN)/python docs/make_manifest_schema.py

notebook: .venv/installed ## run examples/explore.ipynb and write its outputs into it
	$(BIN)/python docs/make_notebook.py

.site-venv/installed: docs/requirements.txt | .venv/installed
	@echo "preparing .site-venv: some seconds"
	@$(PYTHON) -m venv .site-venv
	@$(INSTALL) --python .site-venv/bin/python -r docs/requirements.txt
	@touch $@

# A warning is an error, and so is a link that leads nowhere. NO_MKDOCS_2_WARNING: mkdocs-material prints an advertisement.
site: .site-venv/installed ## build the documentation site, and check its links (PyPI, 160 MB)
	@.site-venv/bin/python docs/gather_pages.py .site
	@$(BIN)/python docs/make_commands.py .site/commands.md
	@$(BIN)/python docs/make_api.py .site
	@$(BIN)/python docs/make_schemas_page.py .site/schemas.md
	@$(BIN)/python docs/make_reasons.py .site/reasons.md
	@$(BIN)/python docs/make_troubleshooting.py .site/troubleshooting.md
	@NO_MKDOCS_2_WARNING=1 .site-venv/bin/mkdocs build --strict --quiet
	@.site-venv/bin/python docs/check_site.py site
	@echo "the site is in site/; python3 -m http.server -d site shows it with its search"

# uv installs what the recording needs; the script names it.
pictures: .venv/installed .torch-venv/installed ## draw charts of results and of kills, and record the demo
	$(BIN)/python -m benchmarks.chart
	.torch-venv/bin/python docs/draw_kills.py
	$(UV) run --quiet docs/record_demo.py

##@ Checks

lint: .venv/installed ## check code, workflows, forms and the Dockerfile by their rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(CHECK).github-workflows .github/workflows/*
	$(CHECK).github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*))
	$(CHECK).github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(CHECK).dependabot .github/dependabot.yml
	$(CHECK).citation-file-format CITATION.cff
	$(CHECK).cloudbuild templates/cloudbuild.yaml
	$(BIN)/hadolint Dockerfile

# mypy does not find folders that are installed under another name; the links have those names.
types: .venv/installed ## check the types with mypy
	@rm -rf .types && mkdir -p .types/fineshards
	@ln -s $(CURDIR)/benchmarks $(CURDIR)/tools .types/
	@ln -s $(CURDIR)/fineshards/* $(CURDIR)/pipeline $(CURDIR)/transforms .types/fineshards/
	$(BIN)/mypy

##@ Benchmarks

# What users install for local builds, and the peers. In .venv, Beam also imports Google's libraries.
.bench-venv/installed: requirements.txt benchmarks/requirements.txt pyproject.toml | .venv/installed
	@echo "preparing .bench-venv, for the job and its peers: a minute"
	@$(PYTHON) -m venv .bench-venv
	@$(INSTALL) --python .bench-venv/bin/python -e '.[build]' -r benchmarks/requirements.txt -c requirements.txt
	@touch $@

# INPUT='a*.parquet b.parquet' ROUNDS=5 REPEAT=10 NAME=large; python -m benchmarks.run --help has more.
bench: .venv/installed .bench-venv/installed ## compare the job with its peers, then the loader (PyPI; many min)
	.bench-venv/bin/python -m benchmarks.run $(foreach pattern,$(INPUT),--input '$(pattern)') \
	    $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(REPEAT),--repeat $(REPEAT)) $(if $(NAME),--name $(NAME))
	$(if $(INPUT),,.bench-venv/bin/python -m benchmarks.run --repeat 50 --rounds 1 --room 30 \
		--only fineshards,bound --name $(if $(NAME),$(NAME)-)20GB)
	@$(MAKE) --no-print-directory bench-loader NAME=$(if $(NAME),$(NAME)-loader)

# In the environment of torch, whose loaders are peers.
bench-loader: .torch-venv/installed ## compare the loader with plain loops and other loaders (PyPI, 5 GB)
	.torch-venv/bin/python -m benchmarks.run --loader $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(NAME),--name $(NAME))

# FOLDER is a dataset; python -m benchmarks.gpu --help has more.
bench-gpu: .torch-venv/installed ## compare training from the loader with batches on the GPU (a GPU; PyPI, 7 GB)
	.torch-venv/bin/python -m benchmarks.gpu $(FOLDER)

# INPUT='a.parquet b.parquet'; python -m benchmarks.curation --help has more.
bench-curation: .curation-venv/installed ## compare steps of recipes with their peers' (PyPI)
	@$(INSTALL) --python .curation-venv/bin/python datasketch rensa -c benchmarks/requirements.txt
	.curation-venv/bin/python -m benchmarks.curation $(if $(INPUT),$(INPUT),$(firstword \
	    $(wildcard ../shared/corpus/crawl-*.parquet) $(SAMPLE)))
	.curation-venv/bin/python -m benchmarks.curation_minhash $(INPUT)
	.curation-venv/bin/python -m benchmarks.curation_scale

bench-scale: .venv/installed ## plan, launch and resume 15 trillion tokens, with made-up counts
	$(BIN)/python -m benchmarks.run --scale $(if $(NAME),--name $(NAME))
	$(BIN)/python -m benchmarks.launching
	$(BIN)/python -m benchmarks.curation_scale --plan
	$(BIN)/python -m benchmarks.far_resuming

# INPUT is a folder of Parquet files with text and id.
bench-far: .venv/installed ## build from a hub 30 ms away, with its limits, and from the local disk
	$(BIN)/python -m benchmarks.far_building $(if $(INPUT),$(INPUT),../shared/corpus)

##@ Release

# sdist, wheel, SHA256SUMS and SBOM in dist/, the same bytes from any checkout. TAG=v1.2.3 compares all names with it.
release: .venv/installed ## build and check what is released into dist/ (PyPI; some min)
	$(BIN)/python -m tools.release $(if $(TAG),--tag $(TAG)) $(if $(EXTRAS),--extras $(EXTRAS))

# The command line for any machine; the template's image is made by `make template`.
image: ## build the image of the command line, and a dataset in it (Docker; 1.5 GB)
	docker build --target cli --tag fineshards .
	docker run --rm --volume $(CURDIR)/samples:/samples:ro fineshards \
	    build --input /$(SAMPLE) --output out --shard_tokens 100k

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

# For Dataflow (docs/cloud.md): make template PROJECT=p REGION=us-central1 BUCKET=b prints the commands; RUN=build
# runs the first two, RUN=launch the last. Also IMAGE=, TEMPLATE=, and for the launch INPUT= or DATASET= and CONFIG=,
# OUTPUT=, JOB=, MACHINE=, WORKERS=, DISK=, SERVICE_ACCOUNT=, PARAMETERS='shard_tokens=1000000 dtype=auto', FLAGS= of gcloud.
# ^~^ keeps gcloud from splitting a value at its commas.
PROJECT ?= PROJECT
REGION ?= us-central1
BUCKET ?= BUCKET
IMAGE ?= $(REGION)-docker.pkg.dev/$(PROJECT)/fineshards/fineshards:$(VERSION)
TEMPLATE ?= gs://$(BUCKET)/templates/fineshards.json
DATASET ?= $(if $(INPUT),,HuggingFaceFW/fineweb-edu)
CONFIG ?= $(if $(INPUT),,sample-10BT)
OUTPUT ?= gs://$(BUCKET)/datasets/$(if $(CONFIG),$(CONFIG),fineshards)
JOB ?= fineshards-$(shell basename '$(OUTPUT)' | tr 'A-Z_.' 'a-z--')
MACHINE ?= n2-standard-4
WORKERS ?= 10
GCLOUD ?= gcloud

define TEMPLATE_BUILD
$(GCLOUD) builds submit . --project=$(PROJECT) --region=$(REGION) \
    --config=templates/cloudbuild.yaml --substitutions=_IMAGE=$(IMAGE)
mkdir -p build && $(BIN)/python -m tools.template_metadata > build/template.json
$(GCLOUD) dataflow flex-template build $(TEMPLATE) --project=$(PROJECT) --image=$(IMAGE) \
    --sdk-language=PYTHON --metadata-file=build/template.json
endef

define TEMPLATE_LAUNCH
$(GCLOUD) dataflow flex-template run $(JOB) --project=$(PROJECT) --region=$(REGION) \
    --template-file-gcs-location=$(TEMPLATE) \
    --staging-location=gs://$(BUCKET)/staging --temp-location=gs://$(BUCKET)/temp \
    --worker-machine-type=$(MACHINE) --max-workers=$(WORKERS) \
    $(if $(SERVICE_ACCOUNT),--service-account-email=$(SERVICE_ACCOUNT)) $(FLAGS) \
    $(foreach parameter,$(GIVEN) $(PARAMETERS),'--parameters=^~^$(parameter)')
endef
GIVEN = sdk_container_image=$(IMAGE) $(if $(INPUT),input=$(INPUT)) $(if $(DATASET),dataset=$(DATASET)) \
    $(if $(CONFIG),dataset_config=$(CONFIG)) output=$(OUTPUT) \
    $(if $(DISK),disk_size_gb=$(DISK))
export TEMPLATE_BUILD TEMPLATE_LAUNCH

template: ## print the commands that build and launch a Dataflow template (gcloud)
ifeq ($(RUN),build)
	@set -ex; eval "$$TEMPLATE_BUILD"
else ifeq ($(RUN),launch)
	@set -ex; eval "$$TEMPLATE_LAUNCH"
else
	@printf '%s\n\n' "$$TEMPLATE_BUILD" "$$TEMPLATE_LAUNCH" | sed -E "s/ +('?--)/ \\\\\n    \1/g"
endif
