#!/usr/bin/env bash
# Tries a recipe, builds with it, and looks at what it dropped and why.
#
# pip install '.[curation]'
# examples/curate.sh [OUTPUT]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
input=$(dirname "$here")/samples/debian_text.parquet
output=${1:-curated}
# Print each command before it runs.
PS4=$'\n$ '
set -x

# What would each step keep and drop? This builds a sample of the input and leaves nothing.
fineshards recipe check "$here/recipe.toml" --input "$input"

# Build.
fineshards build --recipe "$here/recipe.toml" --input "$input" --output "$output"

# What each step did, and what is in the dataset.
fineshards stats "$output"

# Documents that step 4, `minhash`, dropped, each beside an earlier one that is nearly the same.
fineshards inspect "$output" --dropped --step 4 --count 2
