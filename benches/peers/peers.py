"""What a user of PyTorch would run instead, for each operation of a report: pairs of a name and a function that gives
the work, the part of its answer that is checked, and that part in float64.

A peer that needs something that is not installed is left out, or raises, and the table says so.
"""

import functools
import itertools
import os

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import cusparse
import installed
from layer import layer

TYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}


def normal(*shape: int, dtype: torch.dtype, deviation: float = 1.0) -> torch.Tensor:
    """Random numbers: zeros can run faster than data."""
    return (torch.randn(shape, device="cuda") * deviation).to(dtype)


def some(count: int, of: int) -> torch.Tensor:
    """At most `count` numbers below `of`, both ends among them."""
    return torch.linspace(0, of - 1, min(count, of), device="cuda").long().unique()


def in_a_row(layer, x, weights: list) -> list[torch.Tensor]:
    """An input, and what layers make of it one after another, each with weights of its own."""
    return list(itertools.accumulate(weights, layer, initial=x))


def judged(layer, weights: list, rows: torch.Tensor):
    """The check of what `in_a_row` gives: each layer by what it was given, in float64."""

    def check(values):
        expected = [layer(x[rows].double(), own) for x, own in zip(values, weights)]
        return torch.cat([y[rows] for y in values[1:]]), torch.cat(expected)

    return check


def linear(shape: dict):
    m, n, k, dtype = shape["tokens"], shape["d_out"], shape["d_in"], TYPES[shape["dtype"]]
    x, weights = normal(m, k, dtype=dtype), [normal(n, k, dtype=dtype, deviation=k**-0.5) for _ in range(shape.get("layers", 1))]
    rows, w = some(16, m), weights[0]

    if shape["delta"] is None:
        yield "cuBLAS (F.linear)", lambda: in_a_row(F.linear, x, weights), judged(lambda x, w: x @ w.double().t(), weights, rows)
        return
    # Uncompressed LoRA beside the base product.
    adapters, r = shape["delta"]["adapters"], shape["delta"]["rank"]
    a, b = normal(adapters, k, r, dtype=dtype, deviation=k**-0.5), normal(adapters, r, n, dtype=dtype, deviation=r**-0.5)
    ids = torch.arange(m, device="cuda") % adapters

    def check_delta(y):
        hidden = torch.einsum("td,tdr->tr", x[rows].double(), a[ids[rows]].double())
        return y[rows], x[rows].double() @ w.double().t() + torch.einsum("tr,trd->td", hidden, b[ids[rows]].double())

    yield "cuBLAS, gather and bmm", lambda: torch.baddbmm(F.linear(x, w)[:, None], torch.bmm(x[:, None], a[ids]), b[ids])[:, 0], check_delta


def fused_mlp(shape: dict):
    m, d, i, dtype = shape["tokens"], shape["d_model"], shape["d_ff"], TYPES[shape["dtype"]]
    if shape.get("gated"):
        yield from swiglu(shape)
        return

    def drawn():
        w1, b1 = normal(i, d, dtype=dtype, deviation=d**-0.5), normal(i, dtype=dtype, deviation=0.5)
        return w1, b1, normal(d, i, dtype=dtype, deviation=(2 / i) ** 0.5), normal(d, dtype=dtype, deviation=0.5)

    x, weights = normal(m, d, dtype=dtype), [drawn() for _ in range(shape.get("layers", 1))]

    def eager(x, own):
        w1, b1, w2, b2 = own
        return F.linear(F.gelu(F.linear(x, w1, b1), approximate="tanh"), w2, b2)

    def epilogue(x, own):
        # The epilogue of cuBLASLt adds the bias and applies the GELU.
        w1, b1, w2, b2 = own
        return torch.addmm(b2, torch._addmm_activation(b1, x, w1.t(), use_gelu=True), w2.t())

    check = judged(lambda x, own: eager(x, [tensor.double() for tensor in own]), weights, some(4, m))
    yield "PyTorch eager", lambda: in_a_row(eager, x, weights), check
    yield "cuBLASLt, GELU epilogue", lambda: in_a_row(epilogue, x, weights), check


def swiglu(shape: dict):
    m, d, i, dtype = shape["tokens"], shape["d_model"], shape["d_ff"], TYPES[shape["dtype"]]
    # Gate and up lie one behind the other: one product.
    weights = [
        (normal(2 * i, d, dtype=dtype, deviation=d**-0.5), normal(d, i, dtype=dtype, deviation=(2.8 / i) ** 0.5)) for _ in range(shape.get("layers", 1))
    ]
    x = normal(m, d, dtype=dtype)

    def both(x, own):
        both, down = own
        gate, up = F.linear(x, both).chunk(2, -1)
        return F.linear(F.silu(gate) * up, down)

    def apart(x, own):
        both, down = own
        return F.linear(F.silu(F.linear(x, both[:i])) * F.linear(x, both[i:]), down)

    check = judged(lambda x, own: both(x, [tensor.double() for tensor in own]), weights, some(4, m))
    yield "PyTorch eager", lambda: in_a_row(apart, x, weights), check
    yield "PyTorch eager, one product for gate and up", lambda: in_a_row(both, x, weights), check
    if os.environ.get("TORCH_COMPILE_DISABLE") != "1":
        compiled = torch.compile(both)
        yield "PyTorch compiled, one product for gate and up", lambda: in_a_row(compiled, x, weights), check


def attention(shape: dict):
    b, h, hk, d, dtype = shape["batch"], shape["heads"], shape["kv_heads"], shape["head_dim"], TYPES[shape["dtype"]]
    sq, sk, causal, pattern = shape["q_len"], shape["kv_len"], shape["causal"], shape["pattern"]
    # [b, h, s, d], the order that these kernels are written for; each layer has its own.
    layers = [(normal(b, h, sq, d, dtype=dtype), normal(b, hk, sk, d, dtype=dtype), normal(b, hk, sk, d, dtype=dtype)) for _ in range(shape.get("layers", 1))]
    q, k, v = layers[-1]
    listed = None
    if pattern is not None:
        blocks = len(pattern["row_ptr"]) - 1
        listed = torch.zeros(blocks, -(-sk // pattern["block"]), dtype=torch.bool)
        for row in range(blocks):
            listed[row, pattern["col_idx"][pattern["row_ptr"][row] : pattern["row_ptr"][row + 1]]] = True
        listed = listed.cuda()

    def check(o, mask=listed):
        places = some(32, b * h * sq).tolist()
        found, expected = [], []
        keys = torch.arange(sk, device="cuda")
        for place in places:
            batch, head, token = place // (h * sq), place // sq % h, place % sq
            kv = head * hk // h
            scores = k[batch, kv].double() @ q[batch, head, token].double() * d**-0.5
            if causal:
                scores[keys > token + sk - sq] = -torch.inf
            if mask is not None:
                scores[~mask[token // pattern["block"]][keys // pattern["block"]]] = -torch.inf
            found.append(o[batch, head, token])
            expected.append(torch.softmax(scores, 0) @ v[batch, kv].double())
        return torch.stack(found), torch.stack(expected)

    def sdpa(backend):
        with sdpa_kernel(backend):
            return [F.scaled_dot_product_attention(*layer, is_causal=causal, enable_gqa=h != hk) for layer in layers][-1]

    if pattern is not None:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        size = pattern["block"]
        mask = create_block_mask(lambda _b, _h, i, j: listed[i // size, j // size], None, None, sq, sk, device="cuda", BLOCK_SIZE=size)
        compiled = torch.compile(flex_attention)

        def flex():
            # It would multiply all of it and apply the mask then: a hundred times the time that its users see.
            if os.environ.get("TORCH_COMPILE_DISABLE") == "1":
                raise RuntimeError("not compiled: TORCH_COMPILE_DISABLE is set")
            return compiled(q, k, v, block_mask=mask)

        yield "FlexAttention", flex, check
        # More work than is asked for: what a user has who leaves the mask out.
        yield "cuDNN, dense", lambda: sdpa(SDPBackend.CUDNN_ATTENTION), functools.partial(check, mask=None)
        # Last: it refuses too many stored scores before there is any work, and that ends this list.
        yield cusparse.NAME, cusparse.attention(q, k, v, listed, size), check
        return
    yield "cuDNN", lambda: sdpa(SDPBackend.CUDNN_ATTENTION), check
    yield "FlashAttention-2", lambda: sdpa(SDPBackend.FLASH_ATTENTION), check
    if flash_attention_4 := installed.flash_attention_4():
        # The order that it is written for.
        turned = [[tensor.transpose(1, 2).contiguous() for tensor in layer] for layer in layers]
        yield "FlashAttention-4", lambda: [flash_attention_4(*layer, causal) for layer in turned][-1], lambda o: check(o.transpose(1, 2))


def decode(shape: dict):
    """A cache as PyTorch's users keep it: `[b, h, s, d]`, the new token copied to its place in it."""
    b, h, hk, d, s, dtype = shape["batch"], shape["heads"], shape["kv_heads"], shape["head_dim"], shape["kv_len"], TYPES[shape["dtype"]]
    drawn = [(normal(b, h, 1, d, dtype=dtype), normal(2, b, hk, s, d, dtype=dtype), normal(2, b, hk, 1, d, dtype=dtype)) for _ in range(shape["layers"])]
    place = torch.tensor([s - 1], device="cuda")
    q, cache, new = drawn[-1]

    def check(o):
        keys, values = torch.cat([cache[:, :, :, : s - 1], new], 3).double()
        scores = torch.einsum("bhgd,bhsd->bhgs", q.double().view(b, hk, h // hk, d), keys) * d**-0.5
        return o, torch.einsum("bhgs,bhsd->bhgd", torch.softmax(scores, -1), values).view(b, h, 1, d)

    def steps(backend):
        with sdpa_kernel(backend):
            for q, cache, new in drawn:
                cache.index_copy_(3, place, new)
                o = F.scaled_dot_product_attention(q, *cache, enable_gqa=h != hk)
        return o

    yield "index_copy_ and cuDNN", lambda: steps(SDPBackend.CUDNN_ATTENTION), check
    yield "index_copy_ and FlashAttention-2", lambda: steps(SDPBackend.FLASH_ATTENTION), check


def ragged(shape: dict):
    """Sequences end to end; where ours finds keys in pages, the same keys as they lie without any."""
    h, hk, d, causal, dtype = shape["heads"], shape["kv_heads"], shape["head_dim"], shape["causal"], TYPES[shape["dtype"]]
    lengths, chunk = shape["lengths"], shape["chunk"]
    queries = [chunk["queries"] if chunk else length for length in lengths]
    starts = [torch.tensor([0, *counts], device="cuda").cumsum(0).int() for counts in (queries, lengths)]
    q, k, v = normal(sum(queries), h, d, dtype=dtype), normal(sum(lengths), hk, d, dtype=dtype), normal(sum(lengths), hk, d, dtype=dtype)

    def check(o):
        found, expected = [], []
        for place in some(32, sum(queries) * h).tolist():
            row, head = place // h, place % h
            sequence = int((starts[0] <= row).sum()) - 1
            first, end = starts[1][sequence : sequence + 2].tolist()
            if causal:
                end -= int(starts[0][sequence + 1]) - 1 - row
            scores = k[first:end, head * hk // h].double() @ q[row, head].double() * d**-0.5
            found.append(o[row, head])
            expected.append(torch.softmax(scores, 0) @ v[first:end, head * hk // h].double())
        return torch.stack(found), torch.stack(expected)

    flash = torch.ops.aten._flash_attention_forward
    most = max(queries), max(lengths)
    yield "FlashAttention-2", lambda: flash(q, k, v, *starts, *most, 0.0, causal, False, scale=d**-0.5)[0], check


def codebook_gemm(shape: dict):
    """Uncompressed LoRA in the same type and rank: what the codes replace."""
    t, adapters, p, d, r = shape["tokens"], shape["adapters"], shape["projections"], shape["d"], shape["rank"]
    dtype = TYPES[shape["dtype"]]
    if shape["held"] != "device":
        raise NotImplementedError("LoRA that the host holds")
    x = normal(t, d, dtype=dtype)
    a = torch.stack([normal(adapters, d, r, dtype=dtype, deviation=d**-0.5) for _ in range(p)])
    b = torch.stack([normal(adapters, r, d, dtype=dtype, deviation=r**-0.5) for _ in range(p)])
    ids = torch.arange(t, device="cuda") % adapters

    def check(y):
        hidden = torch.einsum("td,tdr->tr", x.double(), a[0][ids].double())
        return y, torch.einsum("tr,trd->td", hidden, b[0][ids].double())

    if shape["grouped"]:

        def batched():
            return torch.bmm(torch.bmm(x.expand(p, t, d), a[:, 0]), b[:, 0])[0]

        yield "LoRA, one bmm pair", batched, check
        return

    # So many projections in a row read one x; the next reads what the last of them wrote.
    share = shape["share"]

    def chained(projection):
        source, first = x, None
        for n in range(p):
            y = projection(source, n)
            first = y if n == 0 else first
            source = y if (n + 1) % share == 0 else source
        return first

    def two_products():
        return chained(lambda source, n: torch.mm(torch.mm(source, a[n, 0]), b[n, 0]))

    def gathered():
        return chained(lambda source, n: torch.bmm(torch.bmm(source[:, None], a[n][ids]), b[n][ids])[:, 0])

    if adapters == 1:
        yield "LoRA, two cuBLAS calls", two_products, check
    else:
        yield "LoRA, gather and bmm", gathered, check
    if prepare := installed.vllm_lora():
        # Projections of one input are slices of one launch, as many as a layer has.
        slices = 4 if share % 4 == 0 else 1
        apply = prepare(ids, adapters, slices, r)
        shrink, expand = ([tensor.mT.contiguous() for tensor in factor] for factor in (a, b))
        outputs = [torch.empty(t, slices * d, device="cuda", dtype=dtype) for _ in range(p // slices)]

        def triton_kernels():
            source = x
            for n, y in enumerate(outputs):
                part = slice(n * slices, (n + 1) * slices)
                apply(source, shrink[part], expand[part], y)
                # As many numbers as an input has, without a copy.
                source = y.view(-1)[: t * d].view(t, d) if part.stop % share == 0 else source
            return outputs[0][:, :d]

        yield "vLLM's LoRA kernels", triton_kernels, check


def lora(shape: dict):
    """The same peers for adapters that are not compressed here either."""
    if shape["added"]:
        raise NotImplementedError("the peers write y over, as the rows beside these do")
    yield from codebook_gemm({**shape, "held": "device", "grouped": False, "share": 1})


def registered(_shape: dict):
    raise NotImplementedError("no GPU holds as many uncompressed adapters")


def mixture(shape: dict):
    """Experts as uncompressed LoRA: gathered for every choice of every token, weighted, added up."""
    t, experts, top, p, d, r = (shape[name] for name in ("tokens", "experts", "top", "projections", "d", "rank"))
    dtype = TYPES[shape["dtype"]]
    x = normal(t, d, dtype=dtype)
    a = torch.stack([normal(experts, d, r, dtype=dtype, deviation=d**-0.5) for _ in range(p)])
    b = torch.stack([normal(experts, r, d, dtype=dtype, deviation=r**-0.5) for _ in range(p)])
    base = normal(t, d, dtype=dtype)
    outputs = [torch.empty_like(base) for _ in range(p)]
    choices = [(torch.arange(t, device="cuda") * 7 + choice * (experts // top)) % experts for choice in range(top)]
    gates = torch.softmax(-torch.arange(top, device="cuda", dtype=torch.float32), 0)
    chosen, weights = torch.stack(choices, 1).flatten(), gates.to(dtype).repeat(t)[:, None, None]
    rows = x.repeat_interleave(top, 0)[:, None]

    def gathered():
        for n, y in enumerate(outputs):
            hidden = torch.bmm(rows, a[n][chosen]) * weights
            torch.add(base, torch.bmm(hidden, b[n][chosen]).view(t, top, d).sum(1), out=y)
        return outputs[0]

    def check(y):
        hidden = torch.einsum("td,tdr->tr", rows[:, 0].double(), a[0][chosen].double()) * gates.double().repeat(t)[:, None]
        return y, base.double() + torch.einsum("tr,trd->td", hidden, b[0][chosen].double()).view(t, top, d).sum(1)

    yield "LoRA, gather and bmm", gathered, check


def copy(shape: dict):
    source = torch.randint(0, 255, (shape["bytes"],), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    part = slice(-65536, None)
    yield "PyTorch copy_", lambda: target.copy_(source), lambda y: (y[part], source[part].double())


def launches(shape: dict):
    x = normal(64, dtype=TYPES[shape["dtype"]])

    def chained():
        y = x
        for _ in range(shape["count"]):
            y = torch.relu(y)
        return y

    yield "PyTorch relu", chained, lambda y: (y, x.double().relu())


OPS = {
    "copy": copy,
    "launches": launches,
    "linear": linear,
    "fused_mlp": fused_mlp,
    "attention": attention,
    "decode": decode,
    "ragged": ragged,
    "codebook_gemm": codebook_gemm,
    "lora": lora,
    "registered": registered,
    "mixture": mixture,
    "layer": layer,
}
