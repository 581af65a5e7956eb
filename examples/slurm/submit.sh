#!/usr/bin/env bash
# Submits a build with deduplication, on nodes that share a folder; the flags are those of build:
#
#     PARTITION=cpu TIME=04:00:00 SHARES=64 examples/slurm/submit.sh \
#         --input 'data/*.parquet' --output /shared/out --dedup minhash
#     fineshards status /shared/out --watch
#
# Run it again if a job runs out of its time: finished work is not repeated.
set -euo pipefail
partition=${PARTITION:-cpu}
time=${TIME:-24:00:00}
shares=${SHARES:-8}
# The environment with fineshards, on all nodes.
environment=${ENVIRONMENT:-$PWD/.venv}
# Steps that compare documents. --dedup is one; a recipe may have more.
compared=${COMPARED:-1}

here=$(cd "$(dirname "$0")" && pwd)
export PATH="$environment/bin:$PATH"
options=(--parsable "--partition=$partition" "--time=$time" --export=ALL)
after=()
# Two arrays per step that compares documents (judge, compare), one for blocks and one for shards.
for ((stage = 0; stage < 2 * compared + 2; stage++)); do
    job=$(sbatch "${options[@]}" "--array=1-$shares" "${after[@]}" "$here/share.sbatch" "$@")
    after=("--dependency=afterany:$job")
done
sbatch "${options[@]}" "${after[@]}" "$here/finish.sbatch" "$@"
