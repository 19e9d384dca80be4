"""Peers that PyTorch does not bring: FlashAttention 4 and vLLM's kernels for many adapters, from their packages or from the folders
that FLASH_ATTENTION_4 (one for pip's --target) and VLLM (scripts/get_vllm_lora.sh lays it out) name. None where they are not there."""

import importlib.util
import os
import site
import sys

import torch


def there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def flash_attention_4():
    """A function of q, k, v `[b, s, h, d]` and `causal`, and its output in the same order."""
    if os.environ.get("FLASH_ATTENTION_4"):
        # As pip lays it out: with files that name more folders. Packages that are installed go first.
        folder = os.environ["FLASH_ATTENTION_4"]
        if folder not in sys.path:
            sys.path.append(folder)
            site.addsitedir(folder)
    if not there("flash_attn.cute"):
        return None

    def attention(q, k, v, causal):
        # Here, so that what it lacks is told as its own.
        from flash_attn.cute import flash_attn_func

        out = flash_attn_func(q, k, v, causal=causal)
        return out[0] if isinstance(out, tuple) else out

    return attention


def vllm_lora():
    """A function that lays out LoRA of many adapters: what it returns applies `slices` projections of one input in two launches."""
    if os.environ.get("VLLM"):
        sys.path.insert(0, os.environ["VLLM"])
    if not there("vllm.lora.ops.triton_ops.lora_shrink_op"):
        return None
    from vllm.lora.ops.triton_ops.lora_expand_op import _lora_expand
    from vllm.lora.ops.triton_ops.lora_kernel_metadata import LoRAKernelMeta
    from vllm.lora.ops.triton_ops.lora_shrink_op import _lora_shrink

    def prepare(ids: torch.Tensor, adapters: int, slices: int, rank: int):
        """`ids` `[tokens]`: the adapter of each."""
        meta = LoRAKernelMeta.make(adapters, len(ids), ids.device)
        meta.prepare_tensors(ids.int())
        tokens = meta.meta_args(len(ids), True)
        hidden = torch.zeros(slices, len(ids), rank, device=ids.device)

        def apply(x, a, b, y):
            """x `[tokens, d_in]`; a and b, a tensor a slice: `[adapters, rank, d_in]`, `[adapters, d_out, rank]`; overwrites y `[tokens, slices · d_out]`."""
            _lora_shrink(x, a, hidden, *tokens, 1.0)
            _lora_expand(hidden, b, y, *tokens, 0, False)
            return y

        return apply

    return prepare
