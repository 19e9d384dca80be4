# shellcheck shell=bash
# Sourced by the jobs: steps that a job goes on behind where an earlier one was ended, and an archive after each.
#
#   begin JOB               the folder of results, and what ends the job well
#   step NAME COMMAND...    runs a command, unless it passed in an earlier run of the job; what it says goes to NAME.log
#   finish                  prints the table of the steps; its status is 1 where one failed or was not reached
#
# A command ends with 0 (passed), 77 (skipped, the reason in its last line), 75 or 130 (its time ended it, and what it did is right), or
# anything else (failed). It is a function that `exec`s what it runs, so that a signal reaches that.
#
# RESULTS    the folder of all results (results); each job has results/JOB-GPU in it, and an archive of that, results/JOB-GPU.tar.gz
# PROGRAMS   the programs that `scripts/gpu.sh pack` built (.gpu)
# PYTHON     the interpreter that has PyTorch (python3)
# AGAIN=1    a job whose time ended it puts itself into the queue again
set -uo pipefail

export PROGRAMS=${PROGRAMS:-.gpu} PYTHON=${PYTHON:-python3}
export TRIFUSE_CACHE_DIR=${TRIFUSE_CACHE_DIR:-${TMPDIR:-/tmp}/trifuse-cache-$(id -u)}
ended='' child='' rows=() failed=0

begin() {
  local gpu
  if [ ! -x "$PROGRAMS/trifuse" ]; then
    echo "error: $PROGRAMS/trifuse is not there; scripts/gpu.sh pack builds it" >&2
    exit 1
  fi
  gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1 | tr -cs 'A-Za-z0-9\n' '-')
  job=$1-${gpu:-gpu}
  all=${RESULTS:-results}
  results=$all/$job
  mkdir -p "$results/done"
  # Slurm sends it before it ends the job, and the step that runs has time to keep what it has.
  trap 'ended=1; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null' TERM
}

# row NAME WORD SECONDS: one line of the table.
row() { rows+=("$(printf '%-24s %-12s %6s s' "$1" "$2" "$3")"); }

passed() { [ -e "$results/done/$1" ]; }

step() {
  local name=$1 began=$SECONDS status=0 word
  shift
  if passed "$name"; then row "$name" 'passed before' 0; return; fi
  if [ -n "$ended" ]; then row "$name" 'not reached' 0; failed=1; return; fi
  "$@" >"$results/$name.log" 2>&1 </dev/null &
  child=$!
  wait "$child"
  status=$?
  # A signal ends the wait, and not the step.
  while kill -0 "$child" 2>/dev/null; do
    wait "$child"
    status=$?
  done
  child=''
  case $status in
    0) word=passed; touch "$results/done/$name" ;;
    75 | 130 | 143) word='cut short' failed=1 ;;
    77) word=skipped ;;
    *) word=failed failed=1 ;;
  esac
  row "$name" "$word" $((SECONDS - began))
  archive
}

archive() {
  # Under another name first: a machine that goes away meanwhile leaves the one before.
  printf '%s\n' "${rows[@]}" >"$results/table.txt"
  # Models are made again from what is kept; their gigabytes are not.
  tar -czf "$all/.$job.part" --exclude="$job/models" -C "$all" "$job" && mv "$all/.$job.part" "$all/$job.tar.gz"
}

finish() {
  archive
  echo "$job:"
  cat "$results/table.txt"
  if [ -n "$ended" ] && [ "${AGAIN:-}" = 1 ] && [ -n "${SLURM_JOB_ID:-}" ]; then scontrol requeue "$SLURM_JOB_ID"; fi
  [ $failed = 0 ]
}

# Whether PyTorch finds the GPU.
has_torch() { "$PYTHON" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; }
