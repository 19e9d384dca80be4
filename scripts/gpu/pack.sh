#!/usr/bin/env bash
# Builds what the stages need, stripped, into $PROGRAMS: pack.sh [right|speed]. Called by scripts/gpu.sh.
set -euo pipefail

profile=${TRIFUSE_PROFILE:-dist}
what=${1:-everything}
tests=(conformance layer model) others=(--bin trifuse --example golden --example embed_speed)
case $what in
  everything) ;;
  right) others=(--bin trifuse --example golden) ;;
  speed) others=(--bin trifuse --example embed_speed) tests=() ;;
  *) echo "error: expected right, speed or nothing; found $what" >&2; exit 2 ;;
esac
# As the tests are built: another set of features would build the dependencies anew. What is timed needs no wgpu.
features=(--features cuda)
if [ "$profile" = dev ]; then features=(--all-features); elif [ "$what" = speed ]; then features=(--no-default-features --features 'cpu cuda'); fi

# A program keeps these names, and its reports tell them.
export TRIFUSE_PROFILE=$profile
TRIFUSE_REVISION=$(git rev-parse --short HEAD)$(git diff --quiet HEAD || echo '+changes')
export TRIFUSE_REVISION

# keep: copies the programs that cargo's messages name.
keep() {
  python3 -c '
import json, os, shutil, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["target"]["name"] in sys.argv[2:]:
        shutil.copy(message["executable"], os.path.join(sys.argv[1], message["target"]["name"]))' "$PROGRAMS" "$@"
}

mkdir -p "$PROGRAMS"
rm -f "$PROGRAMS"/{trifuse,golden,embed_speed,conformance,layer,model}
cargo build "${features[@]}" --profile "$profile" "${others[@]}" --message-format=json-render-diagnostics | keep trifuse golden embed_speed
if [ ${#tests[@]} -gt 0 ]; then
  cargo test "${features[@]}" --profile "$profile" --no-run "${tests[@]/#/--test=}" --message-format=json-render-diagnostics | keep "${tests[@]}"
fi
for program in trifuse golden embed_speed "${tests[@]}"; do
  if [ -e "$PROGRAMS/$program" ]; then strip "$PROGRAMS/$program"; fi
done
(cd "$PROGRAMS" && du -h trifuse golden embed_speed "${tests[@]}" 2>/dev/null) || true
echo "built as $profile of $TRIFUSE_REVISION in $PROGRAMS"
