"""A transformer layer as a user of PyTorch would write it: eager, with cuDNN's attention, and the same by torch.compile.

One product for q, k and v, fused gate and up, norms of one kernel each, biases in the epilogues of cuBLASLt: the best that
eager PyTorch has. Inputs are of the same sizes and types as ours, and of the same distributions.
"""

import os

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

TYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
EPS, BASE = 1e-5, 10000.0
# Rows whose answers are compared.
ROWS = 32


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotary positions, the two halves of a head paired, as Llama's own code has them."""
    low, high = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-high, low), dim=-1) * sine


class Layer:
    """The operands of a layer, and the layer itself."""

    def __init__(self, shape: dict):
        self.dtype = TYPES[shape["dtype"]]
        self.batch, self.tokens, self.causal = shape["batch"], shape["tokens"], shape["causal"]
        self.heads, self.kv_heads, self.d = shape["heads"], shape["kv_heads"], shape["head_dim"]
        self.llama = shape["style"] == "llama"
        hidden, wide, query = shape["hidden"], shape["intermediate"], self.heads * self.d
        self.hidden, self.query, self.key = hidden, query, self.kv_heads * self.d
        self.x = self.normal(self.batch, self.tokens, hidden)
        self.norm1, self.norm2 = self.normal(hidden), self.normal(hidden)
        self.qkv = self.normal(query + 2 * self.key, hidden, deviation=hidden**-0.5)
        self.output = self.normal(hidden, query, deviation=query**-0.5)
        # Of a gated MLP: gate, then up.
        self.up = self.normal(wide * (2 if self.llama else 1), hidden, deviation=hidden**-0.5)
        self.down = self.normal(hidden, wide, deviation=2 * wide**-0.5)
        sizes = {"norm1": hidden, "norm2": hidden, "qkv": query + 2 * self.key, "output": hidden, "up": wide, "down": hidden}
        self.bias = {name: None if self.llama else self.normal(size, deviation=0.5) for name, size in sizes.items()}
        angles = torch.outer(torch.arange(self.tokens, device="cuda").double(), BASE ** (-torch.arange(0, self.d, 2, device="cuda").double() / self.d))
        # [tokens, 1, head_dim]: the same for every head.
        self.angles = torch.cat((angles, angles), dim=-1)[:, None]
        self.cosine, self.sine = self.angles.cos().to(self.dtype), self.angles.sin().to(self.dtype)

    def normal(self, *shape: int, deviation: float = 1.0) -> torch.Tensor:
        return (torch.randn(shape, device="cuda", dtype=torch.float32) * deviation).to(self.dtype)

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        if self.llama:
            return F.rms_norm(x, (self.hidden,), getattr(self, name), EPS)
        return F.layer_norm(x, (self.hidden,), getattr(self, name), self.bias[name], EPS)

    def heads_of(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rows [q | k | v] as [batch, tokens, heads, head_dim] each, where they lie."""
        parts = rows.split([self.query, self.key, self.key], dim=-1)
        q, k, v = (part.unflatten(-1, (-1, self.d)) for part in parts)
        return q, k, v

    def forward(self) -> torch.Tensor:
        rows = F.linear(self.norm(self.x, "norm1"), self.qkv, self.bias["qkv"])
        q, k, v = self.heads_of(rows)
        if self.llama:
            q, k = rotate(q, self.cosine, self.sine), rotate(k, self.cosine, self.sine)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=self.heads != self.kv_heads)
        middle = self.x + F.linear(attended.transpose(1, 2).flatten(2), self.output, self.bias["output"])
        wide = F.linear(self.norm(middle, "norm2"), self.up, self.bias["up"])
        if self.llama:
            gate, up = wide.chunk(2, dim=-1)
            inner = F.silu(gate) * up
        else:
            inner = F.gelu(wide, approximate="tanh")
        return middle + F.linear(inner, self.down, self.bias["down"])

    def check(self, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of the answer, and the same in float64; keys and values of every token."""

        def affine(x, name, rows=slice(None)):
            bias = self.bias[name]
            product = x @ getattr(self, name)[rows].double().t()
            return product if bias is None else product + bias[rows].double()

        def norm(x, name):
            x = x if self.llama else x - x.mean(-1, keepdim=True)
            scaled = x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * getattr(self, name).double()
            return scaled if self.llama else scaled + self.bias[name].double()

        batch = self.batch - 1
        some = torch.linspace(0, self.tokens - 1, min(ROWS, self.tokens), device="cuda").long().unique()
        x = self.x[batch].double()
        normed = norm(x, "norm1")
        q = affine(normed[some], "qkv", slice(0, self.query)).unflatten(-1, (-1, self.d))
        k = affine(normed, "qkv", slice(self.query, self.query + self.key)).unflatten(-1, (-1, self.d))
        v = affine(normed, "qkv", slice(self.query + self.key, None)).unflatten(-1, (-1, self.d))
        if self.llama:
            q, k = rotate(q, self.angles[some].cos(), self.angles[some].sin()), rotate(k, self.angles.cos(), self.angles.sin())
        k, v = (part.repeat_interleave(self.heads // self.kv_heads, dim=1) for part in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * self.d**-0.5
        if self.causal:
            scores.masked_fill_(torch.arange(self.tokens, device="cuda") > some[:, None], -torch.inf)
        attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)
        middle = x[some] + affine(attended, "output")
        wide = affine(norm(middle, "norm2"), "up")
        if self.llama:
            gate, up = wide.chunk(2, dim=-1)
            inner = F.silu(gate) * up
        else:
            inner = F.gelu(wide, approximate="tanh")
        return y[batch, some], middle + affine(inner, "down")


def layer(shape: dict):
    """Pairs of a name and the work, as in peers.py."""
    own = Layer(shape)
    yield "PyTorch eager, cuDNN attention", own.forward, own.check
    # A shape at a time: sizes that are known are the faster ones.
    # Where PyTorch's switch turns its compiler off, the same would be the eager layer again.
    if os.environ.get("TORCH_COMPILE_DISABLE") != "1":
        yield "torch.compile, cuDNN attention", torch.compile(own.forward, dynamic=False), own.check
