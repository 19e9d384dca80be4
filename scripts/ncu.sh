#!/usr/bin/env bash
# What holds a kernel back, by Nsight Compute: tensor pipe, L2, DRAM, issue slots, and what its warps wait for.
#
#   scripts/ncu.sh ['SUITE|SHAPE|KERNEL|SKIP'...]   SHAPE as `trifuse bench SUITE --shape`, KERNEL a part of the kernel's name, SKIP how
#                                             many of its launches come before: the ceilings of a report are eight of gemm_wgmma
#
# With no argument the shapes of attention that are furthest behind. TRIFUSE names the binary (target/dist/trifuse), OUT the
# folder that gets the counters as CSV (target/ncu), MARKDOWN a page whose section "counters" is replaced (docs/performance/counters.md). It needs ncu on the PATH,
# allowed to read the counters. Clocks are left as they are; caches are emptied before each pass.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

trifuse=${TRIFUSE:-target/dist/trifuse}
out=${OUT:-target/ncu}
shapes=("$@")
[ ${#shapes[@]} -gt 0 ] || shapes=(
  'attention|prefill b8 h8 d64 s512|attention_sm90|0'
  'attention|decode b16 h32/32 d128 s4096|attention_sm.0_decode|0'
  'sparse|800 blocks of 128 b1 h1 d64 s8064|attention_sm90|0'
  'attention|decode b64 h32/8 d128 s8192|attention_sm.0_decode|0'
)
# What the table tells and no more: each counter that there is no room for beside the others is another run of the kernel.
counters=$(printf '%s,' gpu__time_duration.sum {sm__pipe_tensor_cycles_active,sm__inst_issued,sm__inst_executed_pipe_{alu,xu}}.avg.pct_of_peak_sustained_elapsed \
  sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active {lts__throughput,gpu__dram_throughput}.avg.pct_of_peak_sustained_elapsed)
command -v ncu >/dev/null || { echo "error: ncu is not on the PATH" >&2; exit 1; }
mkdir -p "$out"
failed=0 files=()
for shape in "${shapes[@]}"; do
  IFS='|' read -r suite name kernel skip <<<"$shape"
  file="$out/$(tr -c 'A-Za-z0-9\n' _ <<<"$name").csv"
  timeout "${SECONDS_EACH:-60}" ncu --csv --page raw --clock-control none --kernel-name "regex:$kernel" --launch-skip "${skip:-0}" --launch-count 1 \
    --section WarpStateStats --metrics "${counters%,}" --log-file "$file" \
    "$trifuse" bench "$suite" --backend cuda --shape "$name" --warmup 0 --iterations 1 --json >"$file.log" 2>&1
  status=$?
  if [ $status = 0 ] && grep -q "$kernel" "$file"; then
    files+=("$name=$file")
  else
    echo "$name: ncu ended with status $status: $(tail -n 2 "$file" "$file.log" 2>/dev/null | tr '\n' ' ')" >&2
    failed=1
  fi
done
# Which file is of which shape, for a table that is made elsewhere.
[ ${#files[@]} = 0 ] || printf '%s\n' "${files[@]//=*\//=}" >"$out/shapes.txt"
[ ${#files[@]} = 0 ] || python3 scripts/ncu_table.py "${files[@]}" ${MARKDOWN:+--markdown "$MARKDOWN"} || failed=1
exit $failed
