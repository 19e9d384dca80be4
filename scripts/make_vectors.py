#!/usr/bin/env python3
"""Writes tests/vectors/*.safetensors: small cases with answers in float64, computed by NumPy alone.

The crate's own float64 definition is tested against these files, so this script shares nothing with it: it works on
whole arrays and masks where the crate goes element by element. Run from the root of the repository, with NumPy:

    python3 scripts/make_vectors.py [FOLDER]
    python3 scripts/make_vectors.py FOLDER --random N --seed S     # N cases of drawn shapes and flags, for `trifuse verify`

NumPy's legacy generator is frozen, so that the same values are drawn every time. The last bits of its sums depend on the kernels
that its BLAS has for a processor: `./check vectors` compares with those that made the committed files.
"""

import argparse
import json
import math
import pathlib
import struct
import zlib

import numpy as np


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=pathlib.Path("tests/vectors"))
    parser.add_argument("--seed", type=int, default=0, help="another one gives other values, and other random cases (default 0)")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="in place of the usual cases: N drawn at random")
    return parser.parse_args()


OPTIONS = arguments()
FOLDER = OPTIONS.folder


# Operands: float64 arrays whose values the named type holds exactly.


def to_bf16_bits(values):
    """The upper 16 bits of each float32, rounded to nearest, ties to even."""
    bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def rounded(values, dtype):
    values = np.asarray(values, np.float64)
    if dtype == "bf16":
        return (to_bf16_bits(values).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return values.astype({"f16": np.float16, "f32": np.float32}[dtype]).astype(np.float64)


class Source:
    """Random operands of one case, seeded by its name and by --seed."""

    def __init__(self, name, dtype):
        self.random = np.random.RandomState(zlib.crc32(name.encode()) ^ OPTIONS.seed & 0xFFFFFFFF)
        self.dtype = dtype

    def normal(self, *shape, scale=1.0):
        return rounded(self.random.standard_normal(shape) * scale, self.dtype)

    def integers(self, limit, *shape):
        return self.random.randint(0, limit, shape)


# Files


class Stored:
    """A tensor with the type that the file names it by."""

    def __init__(self, values, kind):
        values = np.ascontiguousarray(values)
        self.kind, self.shape = kind, list(values.shape)
        if kind == "BF16":
            self.data = to_bf16_bits(values).astype("<u2").tobytes()
        else:
            self.data = values.astype({"F16": "<f2", "F32": "<f4", "F64": "<f8", "I32": "<i4", "U8": "u1"}[kind]).tobytes()


def write(name, op, params, operands, indices, outputs):
    """One case. Operands are in the case's type; `indices` are `Stored` already; outputs are float64."""
    tensors = {key: Stored(value, params["dtype"].upper()) for key, value in operands.items() if value is not None}
    tensors |= indices
    tensors |= {key: Stored(value, "F64") for key, value in outputs.items()}
    header = {"__metadata__": {"op": op, "params": json.dumps(params)}}
    offset = 0
    # Widest elements first keeps every tensor aligned.
    ordered = sorted(tensors.items(), key=lambda item: (-{"F64": 8, "F32": 4, "I32": 4, "U8": 1}.get(item[1].kind, 2), item[0]))
    for key, tensor in ordered:
        header[key] = {"dtype": tensor.kind, "shape": tensor.shape, "data_offsets": [offset, offset + len(tensor.data)]}
        offset += len(tensor.data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    FOLDER.mkdir(parents=True, exist_ok=True)
    data = b"".join(tensor.data for _, tensor in ordered)
    (FOLDER / f"{op}_{name}.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


# Codebook GEMM


def codebook_gemm(name, dtype, tokens, d_in, d_out, rank, adapters, accumulate=True, core=False, base="some", thirds=False):
    source = Source("codebook_gemm " + name, dtype)
    x = source.normal(tokens, d_in)
    basis = source.normal(d_in, rank, scale=d_in**-0.5)
    codes1, codes2 = source.integers(16, adapters, d_out, rank), source.integers(8, adapters, d_out, rank)
    book1, book2 = source.normal(adapters, 16, scale=rank**-0.5), source.normal(adapters, 8, scale=0.25 * rank**-0.5)
    cores = source.normal(adapters, rank, rank, scale=rank**-0.5) if core else None
    # In thirds, which no f32 holds: the answer is that of the number in float64.
    scaling = [(1 + a % 5) / 3 if thirds else 0.5 + 0.25 * (a % 5) for a in range(adapters)]
    owner = {"some": source.integers(adapters + 1, tokens) - 1, "all": np.full(tokens, -1), "none": source.integers(adapters, tokens)}[base]
    y = source.normal(tokens, d_out) if accumulate else np.zeros((tokens, d_out))
    operands = {"x": x, "basis": basis, "codebook1": book1, "codebook2": book2, "core": cores}
    if accumulate:
        operands["y_in"] = y.copy()
    for a in range(adapters):
        factor = np.take(book1[a], codes1[a]) + np.take(book2[a], codes2[a])
        weight = scaling[a] * basis @ (cores[a] if core else np.eye(rank)) @ factor.T
        y[owner == a] += x[owner == a] @ weight
    indices = {"token_adapter": Stored(owner, "I32"), "codes1": Stored(codes1, "U8"), "codes2": Stored(codes2, "U8")}
    write(name, "codebook_gemm", {"dtype": dtype, "accumulate": accumulate, "scaling": scaling}, operands, indices, {"y": y})


# Attention


def softmax_attention(q, k, v, seen, scale):
    """One head of one sequence: q [n, d], k, v [m, d], `seen` [n, m]; the output and the logarithm of the sums."""
    with np.errstate(divide="ignore", invalid="ignore"):
        scores = np.where(seen, scale * (q @ k.T), -np.inf)
        top = np.where(seen.any(axis=1), scores.max(axis=1, initial=-np.inf), 0.0)
        weights = np.exp(scores - top[:, None])
        total = weights.sum(axis=1)
        return np.where(total[:, None] > 0, weights @ v / np.where(total > 0, total, 1)[:, None], 0.0), top + np.log(total)


def position_mask(n, m, causal, window):
    position = np.arange(n)[:, None] + (m - n)
    key = np.arange(m)[None, :]
    seen = np.ones((n, m), bool)
    if causal:
        seen &= key <= position
    if window >= 0:
        seen &= (key >= position - window) & ((key <= position + window) | causal)
    return seen


def params_of(dtype, causal=False, window=-1, scale=0.0, block=0):
    return {"dtype": dtype, "causal": causal, "window": window, "scale": scale, "block": block}


def heads_of(q, k, v, seen, scale):
    """q [n, heads, d], k, v [m, kv_heads, d]; `seen` [n, m] or [heads, n, m]."""
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    per_head = np.broadcast_to(seen, (heads,) + seen.shape[-2:])
    results = [softmax_attention(q[:, h], k[:, h // group], v[:, h // group], per_head[h], scale) for h in range(heads)]
    return np.stack([o for o, _ in results], axis=1), np.stack([lse for _, lse in results])


def attention(name, dtype, batch, heads, lengths, d, lse=True, lists=None, huge=False, **options):
    source, params = Source("attention " + name, dtype), params_of(dtype, **options)
    (n, m), (h, kv) = lengths, heads
    q, k, v = source.normal(batch, n, h, d), source.normal(batch, m, kv, d), source.normal(batch, m, kv, d)
    if huge:
        # Multiples of 32: exact in every type, and scores of about 10,000.
        q, k = 32.0 * np.round(2 * q), 32.0 * np.round(2 * k)
    scale = params["scale"] or d**-0.5
    seen = np.broadcast_to(position_mask(n, m, params["causal"], params["window"]), (batch, h, n, m)).copy()
    indices = {}
    if lists is not None:
        block, blocks_q, blocks_k = params["block"], -(-n // params["block"]), -(-m // params["block"])
        listed = source.random.rand(lists, blocks_q, blocks_k) < 0.5
        listed[:, 0] = False
        listed[:, -1] = True
        row_ptr = [[0] * (blocks_q + 1) for _ in range(lists)]
        columns = []
        for p in range(lists):
            for row in range(blocks_q):
                row_ptr[p][row] = len(columns)
                columns += np.flatnonzero(listed[p, row]).tolist()
            row_ptr[p][blocks_q] = len(columns)
        full = listed.repeat(block, axis=1).repeat(block, axis=2)[:, :n, :m]
        seen &= full if lists == 1 else full.reshape((-1, h, n, m))
        indices = {"row_ptr": Stored(np.array(row_ptr if lists > 1 else row_ptr[0]), "I32"), "col_idx": Stored(np.array(columns), "I32")}
    results = [heads_of(q[b], k[b], v[b], seen[b], scale) for b in range(batch)]
    outputs = {"o": np.stack([o for o, _ in results])}
    if lse:
        outputs["lse"] = np.stack([sums for _, sums in results])
    write(name, "attention", params, {"q": q, "k": k, "v": v}, indices, outputs)


def attention_varlen(name, dtype, heads, q_lengths, k_lengths, d, **options):
    source, params = Source("attention " + name, dtype), params_of(dtype, **options)
    starts_q, starts_k = np.cumsum([0] + q_lengths), np.cumsum([0] + k_lengths)
    q = source.normal(1, starts_q[-1], heads[0], d)
    k, v = source.normal(1, starts_k[-1], heads[1], d), source.normal(1, starts_k[-1], heads[1], d)
    results = []
    for (a, b), (c, e) in zip(zip(starts_q, starts_q[1:]), zip(starts_k, starts_k[1:])):
        seen = position_mask(b - a, e - c, params["causal"], params["window"])
        results.append(heads_of(q[0, a:b], k[0, c:e], v[0, c:e], seen, params["scale"] or d**-0.5))
    indices = {"cu_seqlens_q": Stored(starts_q, "I32"), "cu_seqlens_k": Stored(starts_k, "I32")}
    outputs = {"o": np.concatenate([o for o, _ in results])[None], "lse": np.concatenate([sums for _, sums in results], axis=1)}
    write(name, "attention", params, {"q": q, "k": k, "v": v}, indices, outputs)


def attention_paged(name, dtype, heads, q_len, lengths, page, d, **options):
    source, params = Source("attention " + name, dtype), params_of(dtype, **options)
    counts = [-(-length // page) for length in lengths]
    pool = sum(counts) + 2
    order = source.random.permutation(pool)
    table = np.full((len(lengths), max(counts)), -1)
    q = source.normal(len(lengths), q_len, heads[0], d)
    k, v = source.normal(pool, page, heads[1], d), source.normal(pool, page, heads[1], d)
    results = []
    for b, length in enumerate(lengths):
        own, order = order[: counts[b]], order[counts[b] :]
        table[b, : counts[b]] = own
        flat = [cache[own].reshape(-1, heads[1], d)[:length] for cache in (k, v)]
        seen = position_mask(q_len, length, params["causal"], params["window"])
        results.append(heads_of(q[b], *flat, seen, params["scale"] or d**-0.5))
    indices = {"page_table": Stored(table, "I32"), "kv_len": Stored(np.array(lengths), "I32")}
    outputs = {"o": np.stack([o for o, _ in results]), "lse": np.stack([sums for _, sums in results])}
    write(name, "attention", params, {"q": q, "k": k, "v": v}, indices, outputs)


# MLP and linear

ACTIVATIONS = {
    "none": lambda x: x,
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: 0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
}


def fused_mlp(name, dtype, tokens, d_model, d_ff, d_out, activation, gated=False, biases="", residual=False):
    source = Source("fused_mlp " + name, dtype)
    act = ACTIVATIONS[activation]
    x = source.normal(tokens, d_model)
    w1, w2 = source.normal(d_ff, d_model, scale=d_model**-0.5), source.normal(d_out, d_ff, scale=2 * d_ff**-0.5)
    wg = source.normal(d_ff, d_model, scale=d_model**-0.5) if gated else None
    b1 = source.normal(d_ff, scale=0.5) if "1" in biases else None
    b2 = source.normal(d_out, scale=0.5) if "2" in biases else None
    rest = source.normal(tokens, d_out) if residual else None
    up = x @ w1.T + (0 if b1 is None else b1)
    hidden = act(x @ wg.T) * up if gated else act(up)
    y = hidden @ w2.T + (0 if b2 is None else b2) + (0 if rest is None else rest)
    operands = {"x": x, "w1": w1, "w2": w2, "wg": wg, "b1": b1, "b2": b2, "residual": rest}
    write(name, "fused_mlp", {"dtype": dtype, "activation": activation, "gated": gated}, operands, {}, {"y": y})


def linear(name, dtype, tokens, d_in, d_out, activation="none", bias=False, residual=False):
    source = Source("linear " + name, dtype)
    x, w = source.normal(tokens, d_in), source.normal(d_out, d_in, scale=d_in**-0.5)
    b = source.normal(d_out, scale=0.5) if bias else None
    rest = source.normal(tokens, d_out) if residual else None
    y = ACTIVATIONS[activation](x @ w.T + (0 if b is None else b)) + (0 if rest is None else rest)
    write(name, "linear", {"dtype": dtype, "activation": activation}, {"x": x, "w": w, "bias": b, "residual": rest}, {}, {"y": y})


# Cases drawn at random: every operation, form and flag, at shapes that nobody chose.


class Draw:
    def __init__(self, seed):
        self.random = np.random.RandomState(seed & 0xFFFFFFFF)

    def size(self, most):
        """From 1 to `most`, each order of magnitude as likely as another: small and odd sizes are where kernels break."""
        return int(math.exp(self.random.uniform(0, math.log(most + 1))))

    def of(self, *choices):
        return choices[self.random.randint(len(choices))]

    def yes(self):
        return bool(self.random.randint(2))

    def dtype(self):
        return self.of("f16", "bf16", "f32")

    def heads(self):
        kv = self.of(1, 1, 2, 3)
        return kv * self.of(1, 1, 2, 4), kv

    def sight(self):
        """The mask and the scale."""
        return {"causal": self.yes(), "window": self.of(-1, -1, self.size(60) - 1), "scale": self.of(0.0, 0.0, 0.125, 0.1)}


def random_codebook_gemm(draw, name):
    base, flags = draw.of("some", "some", "all", "none"), {"accumulate": draw.yes(), "core": draw.yes(), "thirds": draw.yes()}
    codebook_gemm(name, draw.dtype(), draw.size(70) - 1, draw.size(200), draw.size(200), draw.size(80), draw.size(9), base=base, **flags)


def random_attention(draw, name):
    form, dtype, heads, d = draw.of("dense", "dense", "blocks", "varlen", "paged"), draw.dtype(), draw.heads(), draw.size(160)
    if form == "varlen":
        lengths = [(draw.size(70) - 1, draw.size(70) - 1) for _ in range(draw.size(5))]
        # A batch with nothing in it has no tensors to speak of.
        lengths.append((draw.size(40), draw.size(40)))
        attention_varlen(name, dtype, heads, [q for q, _ in lengths], [k for _, k in lengths], d, **draw.sight())
    elif form == "paged":
        lengths = [draw.size(150) - 1 for _ in range(draw.size(4))] + [draw.size(100)]
        attention_paged(name, dtype, heads, draw.of(1, 1, 3, 17), lengths, draw.of(1, 8, 16, 20, 64), d, **draw.sight())
    elif form == "blocks":
        batch = draw.of(1, 2)
        shape = {"block": draw.of(64, 128), "lists": draw.of(1, heads[0], batch * heads[0])}
        attention(name, dtype, batch, heads, (draw.size(280), draw.size(280)), d, lse=draw.yes(), **shape, **draw.sight())
    else:
        attention(name, dtype, draw.size(3), heads, (draw.size(150), draw.size(200)), d, lse=draw.yes(), **draw.sight())


def random_fused_mlp(draw, name):
    sizes = draw.size(50), draw.size(160), draw.size(300), draw.size(160)
    flags = {"gated": draw.yes(), "biases": draw.of("", "1", "2", "12"), "residual": draw.yes()}
    fused_mlp(name, draw.dtype(), *sizes, draw.of(*(kind for kind in ACTIVATIONS if kind != "none")), **flags)


def random_linear(draw, name):
    linear(name, draw.dtype(), draw.size(150), draw.size(300), draw.size(300), draw.of(*ACTIVATIONS), bias=draw.yes(), residual=draw.yes())


def random_cases(count, seed):
    kinds = random_codebook_gemm, random_attention, random_fused_mlp, random_attention, random_linear
    for number in range(count):
        # Each by a seed of its own: a case can be made again alone, and does not change with how many there are.
        kinds[number % len(kinds)](Draw(zlib.crc32(f"{seed} {number}".encode())), f"random_{seed}_{number:04}")


def main():
    for dtype in ("f16", "bf16", "f32"):
        codebook_gemm(f"accumulate_{dtype}", dtype, 13, 40, 56, 16, 4)
        codebook_gemm(f"overwrite_core_{dtype}", dtype, 9, 33, 45, 11, 3, accumulate=False, core=True)
        attention(f"dense_{dtype}", dtype, 2, (2, 2), (17, 33), 32)
        attention(f"causal_gqa_{dtype}", dtype, 1, (4, 2), (31, 31), 40, causal=True)
        fused_mlp(f"everything_{dtype}", dtype, 7, 33, 70, 41, "gelu_tanh", biases="12", residual=True)
        linear(f"everything_{dtype}", dtype, 9, 65, 47, "silu", bias=True, residual=True)
    codebook_gemm("core_accumulate_rank1", "f16", 6, 24, 31, 1, 2, core=True)
    codebook_gemm("base_only", "f16", 5, 16, 24, 8, 2, base="all")
    codebook_gemm("base_only_overwrite", "f16", 5, 16, 24, 8, 2, accumulate=False, base="all")
    codebook_gemm("no_base", "bf16", 12, 32, 48, 17, 6, base="none")
    codebook_gemm("no_tokens", "f32", 0, 16, 24, 8, 2)
    codebook_gemm("scaling_thirds", "f32", 11, 24, 40, 8, 4, base="none", thirds=True)

    attention("causal_q_shorter", "f16", 1, (2, 1), (9, 50), 32, causal=True)
    attention("causal_q_longer_empty_rows", "f16", 1, (2, 1), (50, 9), 32, causal=True)
    attention("window", "f16", 1, (1, 1), (40, 40), 32, window=7)
    attention("window_causal", "bf16", 1, (2, 2), (33, 61), 24, window=7, causal=True)
    attention("scale_no_lse", "f16", 1, (2, 2), (12, 20), 48, scale=0.25, lse=False)
    attention("head_dim107", "f16", 1, (1, 1), (9, 35), 107)
    attention("scores_1e4", "f32", 1, (1, 1), (12, 40), 64, huge=True)
    attention("blocks", "f16", 1, (2, 2), (130, 150), 16, block=64, lists=1)
    attention("blocks_per_head_causal", "f16", 2, (2, 1), (129, 129), 16, block=64, lists=2, causal=True)
    attention("blocks_per_sequence_and_head", "f32", 2, (2, 1), (65, 140), 8, block=64, lists=4)
    attention("blocks128_window", "bf16", 1, (1, 1), (200, 200), 16, block=128, lists=1, window=60)
    attention_varlen("varlen", "f16", (2, 2), [7, 0, 33, 1], [12, 5, 33, 0], 32)
    attention_varlen("varlen_causal", "bf16", (4, 2), [31, 1, 9], [31, 40, 3], 24, causal=True)
    attention_paged("paged", "f16", (4, 1), 1, [1, 33, 16], 16, 32)
    attention_paged("paged_q3_causal", "f32", (2, 2), 3, [20, 0, 65], 32, 16, causal=True)

    for dtype, activation in zip(("f16", "bf16", "f32", "f16"), ("gelu_tanh", "gelu_erf", "silu", "relu")):
        fused_mlp(f"gated_{activation}", dtype, 5, 24, 40, 24, activation, gated=True)
        linear(activation, dtype, 6, 31, 33, activation)
    fused_mlp("gelu_erf_bias1", "f16", 4, 17, 33, 19, "gelu_erf", biases="1")
    fused_mlp("gated_bias1_bias2_residual", "f16", 4, 17, 33, 19, "silu", gated=True, biases="12", residual=True)
    linear("bias", "f16", 5, 20, 17, bias=True)
    linear("residual", "bf16", 5, 20, 17, residual=True)
    linear("no_tokens", "f16", 0, 20, 17)


if __name__ == "__main__":
    if OPTIONS.random:
        random_cases(OPTIONS.random, OPTIONS.seed)
    else:
        main()
