#!/usr/bin/env bash
# Puts jobs into the queue of a cluster, each once for each kind of GPU: scripts/slurm/submit.sh stages hunt shrink
#
# GPUS      the kinds, as the cluster calls them (a100 h100; `sinfo -o %G` lists them)
# OPTIONS   more options of sbatch, such as '--partition=gpu --account=mine'; --test-only checks the jobs and puts none into the queue
#
# Arguments of the jobs are read from the environment, which sbatch hands on; each job's file names them.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -gt 0 ] || { sed -n '2,7p' "$0" >&2; exit 2; }
command -v sbatch >/dev/null || { echo 'error: sbatch is not on the PATH: this machine has no Slurm' >&2; exit 1; }
for job; do
  [ -e "scripts/slurm/$job.sbatch" ] || { echo "error: expected jobs of: stages hunt shrink; found: $job" >&2; exit 2; }
done
for gpu in ${GPUS:-a100 h100}; do
  for job; do
    # shellcheck disable=SC2086 # several options
    sbatch ${OPTIONS:-} --gpus="$gpu:1" --job-name="trifuse-$job-$gpu" "scripts/slurm/$job.sbatch"
  done
done
