#!/usr/bin/env bash
# Lays vLLM's Triton kernels for many adapters into DIR, with stand-ins for the few names that they import from the rest of
# vLLM, so that benches/peers can measure them where vLLM itself is not installed. DIR is for comparison only, never committed.
#
#   scripts/get_vllm_lora.sh DIR      then: VLLM=DIR scripts/bench.sh adapters
#
# Downloads the whole wheel (340 MB) and keeps 100 KB of it.
set -euo pipefail

folder=${1:?a folder for the kernels}
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux_2_28_x86_64 \
  --platform manylinux1_x86_64 -d "$made" vllm==0.33.0
mkdir -p "$folder"
unzip -q -o "$made"/vllm-*.whl 'vllm/lora/ops/triton_ops/lora_*' 'vllm/lora/ops/triton_ops/utils.py' \
  'vllm/lora/ops/triton_ops/kernel_utils.py' -d "$folder"
cd "$folder"
rm -f vllm/lora/ops/triton_ops/*fp8*
mkdir -p vllm/utils
for package in vllm vllm/lora vllm/lora/ops vllm/lora/ops/triton_ops vllm/utils; do : >"$package/__init__.py"; done

# Its settings, as they are where nothing is set.
cat >vllm/envs.py <<'PYTHON'
VLLM_BATCH_INVARIANT = False
VLLM_TUNED_CONFIG_FOLDER = None
VLLM_LORA_DISABLE_PDL = False
VLLM_LORA_ENABLE_DUAL_STREAM = False
PYTHON
echo 'import triton, triton.language as tl' >vllm/triton_utils.py
cat >vllm/logger.py <<'PYTHON'
import logging


def init_logger(name):
    logger = logging.getLogger(name)
    logger.info_once = logger.warning_once = logger.debug_once = logger.info
    return logger
PYTHON
cat >vllm/platforms.py <<'PYTHON'
import torch


class Platform:
    def is_cuda(self):
        return True

    def has_device_capability(self, least, *_):
        major, minor = torch.cuda.get_device_capability()
        return 10 * major + minor >= (10 * least[0] + least[1] if isinstance(least, tuple) else least)

    def is_device_capability(self, exactly, *_):
        major, minor = torch.cuda.get_device_capability()
        return 10 * major + minor == (10 * exactly[0] + exactly[1] if isinstance(exactly, tuple) else exactly)


current_platform = Platform()
PYTHON
cat >vllm/utils/math_utils.py <<'PYTHON'
def next_power_of_2(number):
    return 1 << (number - 1).bit_length() if number > 0 else 1
PYTHON
cat >vllm/utils/torch_utils.py <<'PYTHON'
import torch


def direct_register_custom_op(**_):
    raise AttributeError("the kernels are called directly")


def async_tensor_h2d(data, dtype, target_device=None, device=None, pin_memory=False):
    return torch.tensor(data, dtype=dtype, device=target_device or device)
PYTHON
