# Two images. One is for the command line. The other is for a Flex Template's launcher and for the
# workers, so that both have the same libraries.
#
# The launcher's program comes from Google's image. The tag is the latest for Python 3.11 that public
# Dockerfiles name. docs/cloud.md says how to list later tags; see also
# https://cloud.google.com/dataflow/docs/reference/flex-templates-base-images
ARG LAUNCHER_TAG=20240812-rc01
FROM gcr.io/dataflow-templates-base/python311-template-launcher-base:${LAUNCHER_TAG} AS launcher

# The command line for any machine: docker build --target cli --tag fineshards .
FROM python:3.11-slim AS cli
WORKDIR /fineshards
COPY requirements.txt ./
RUN pip install --no-cache-dir --requirement requirements.txt

COPY pyproject.toml setup.py MANIFEST.in README.md LICENSE ./
COPY fineshards fineshards
COPY pipeline pipeline
COPY transforms transforms
RUN pip install --no-cache-dir --constraint requirements.txt '.[azure,build,curation,gcs,s3,warc]' \
    && pip check && python -m compileall -q /usr/local/lib/python3.11/site-packages

# With `docker run --user` it may be any user, whose home for caches this is too.
RUN useradd --create-home --uid 1000 fineshards && chmod 1777 /home/fineshards \
    && install -d -o fineshards /data
ENV HOME=/home/fineshards
USER 1000
WORKDIR /data
ENTRYPOINT ["fineshards"]
CMD ["--help"]

# The template's image is the last stage, so it is what `docker build` makes without --target. (A
# builder without BuildKit makes the stages above too.)
# The version in requirements.txt: Dataflow requires the same Beam on launcher and workers.
FROM apache/beam_python3.11_sdk:2.77.0 AS template
COPY --from=launcher /opt/google/dataflow/python_template_launcher /opt/google/dataflow/python_template_launcher

WORKDIR /fineshards
# The libraries are a layer of their own, which a change of the code leaves in the cache.
COPY requirements.txt ./
RUN pip install --no-cache-dir --requirement requirements.txt

COPY pyproject.toml setup.py MANIFEST.in README.md LICENSE ./
COPY fineshards fineshards
COPY pipeline pipeline
COPY transforms transforms
RUN pip install --no-cache-dir --constraint requirements.txt '.[dataflow,warc]' \
    && python -m compileall -q /usr/local/lib/python3.11/site-packages

# In a folder of its own: Python puts the folder of the program it runs before all packages.
COPY fineshards/cli/build_command.py /template/main.py
ENV FLEX_TEMPLATE_PYTHON_PY_FILE=/template/main.py
# FLEX_TEMPLATE_PYTHON_REQUIREMENTS_FILE and FLEX_TEMPLATE_PYTHON_SETUP_FILE stay unset: they would
# install everything again at every launch and on every worker.
WORKDIR /template

# The libraries do not contradict each other, or pip would look for others, and has no index. Not
# `pip check`: Beam's image has packages that the job does not use, whose demands ours need not meet.
# cl100k_base is there, as OpenAI published it.
# hadolint ignore=DL3013
RUN pip install --no-cache-dir --no-index --dry-run --quiet 'fineshards[dataflow,warc]' \
    && python -c "from fineshards.encoders.vocabulary import resolve_vocabulary as r; r('cl100k_base')"

# The entry point of the base image, repeated because the workers depend on it.
ENTRYPOINT ["/opt/apache/beam/boot"]
