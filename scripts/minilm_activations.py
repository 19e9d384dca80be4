#!/usr/bin/env python3
"""Runs all-MiniLM-L6-v2 in NumPy: collects calibration activations, and measures what a compressed adapter does to the
model's output. `scripts/get_minilm.sh` fetches the model.

Three jobs:

  --check GOLDEN                    compare this forward pass, in float64, with reference outputs
  --text PAIRS --output FILE        write the inputs of the 36 projections, one tensor [rows, d_in] a module path
  --text PAIRS --adapter DIR --against DIR
                                    embeddings of base + DIR beside those of base + the original: cosine and recall@1

PAIRS is a file of JSON lines with `d` (domain), `i` (number), `a` and `b` (a passage and the next of the same document).
`--output` also takes `--tokens FILE`, a safetensors file with `input_ids` and `attention_mask` [passages, length].

Rows of one passage lie together, and pairs come in shuffled order: the last quarter of a file comes from other passages
than the rest (at most one pair lies across the border). `--held-out FILE` writes a second file, from other pairs.
query, key and value have the same input; it is written under each path, so that a reader needs no rule for it.

On a busy machine set OPENBLAS_NUM_THREADS=1: threads that wait for a core spin, and cost more than they give.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Callable, Iterable, NamedTuple

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from peft_folder import Lora, find_adapters, read_adapter, read_tensors

LAYERS, HIDDEN, HEADS, EPSILON, MAX_TOKENS = 6, 384, 12, 1e-12, 128
MODULES = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
)
BATCH_TOKENS = 4096
Observer = Callable[[str, np.ndarray], None]


class Passage(NamedTuple):
    """One passage: which pair it belongs to, which side of it, and its token ids with [CLS] and [SEP]."""

    pair: str
    domain: str
    side: str
    ids: np.ndarray


class Erf:
    """The error function by cubic Hermite interpolation; off by less than 1e-12 in float64. NumPy has none."""

    STEPS, END = 512, 6.0

    def __init__(self, dtype: type) -> None:
        knots = np.arange(int(self.END * self.STEPS) + 2) / self.STEPS
        value = np.array([math.erf(x) for x in knots])
        slope = 2 / math.sqrt(math.pi) * np.exp(-knots * knots) / self.STEPS
        rise = np.diff(value)
        left, right = slope[:-1], slope[1:]
        self.coefficients = [c.astype(dtype) for c in (value[:-1], left, 3 * rise - 2 * left - right, left + right - 2 * rise)]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        place = np.minimum(np.abs(x), x.dtype.type(self.END)) * x.dtype.type(self.STEPS)
        knot = place.astype(np.int32)
        place -= knot
        c0, c1, c2, c3 = self.coefficients
        result = c3.take(knot)
        for coefficient in (c2, c1, c0):
            result *= place
            result += coefficient.take(knot)
        return np.copysign(result, x)


class Bert:
    """The base model, with at most one adapter added to its projections (not merged, so that rounding is the adapter's own)."""

    def __init__(self, model: Path, dtype: type = np.float32) -> None:
        self.dtype = dtype
        self.weights = {
            name: tensor.astype(dtype) for name, tensor in read_tensors(model).items() if tensor.dtype.kind == "f"
        }
        self.erf = Erf(dtype)
        self.adapter: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def set_adapter(self, adapter: dict[str, Lora] | None) -> None:
        """Adds an adapter, or with None goes back to the base model."""
        self.adapter = {}
        for path, lora in (adapter or {}).items():
            if path + ".weight" not in self.weights:
                raise ValueError(f"{path}: the base model has no such projection")
            shape = self.weights[path + ".weight"].shape
            if (lora.b.shape[0], lora.a.shape[1]) != shape:
                raise ValueError(f"{path}: the weight is {shape}, lora_B {lora.b.shape}, lora_A {lora.a.shape}")
            down, up = lora.a.T, lora.scaling * lora.b.T
            self.adapter[path] = (np.ascontiguousarray(down, self.dtype), np.ascontiguousarray(up, self.dtype))

    def linear(self, path: str, x: np.ndarray, observe: Observer | None) -> np.ndarray:
        if observe:
            observe(path, x)
        rows = x.reshape(-1, x.shape[-1])
        y = rows @ self.weights[path + ".weight"].T
        y += self.weights[path + ".bias"]
        if path in self.adapter:
            down, up = self.adapter[path]
            y += (rows @ down) @ up
        return y.reshape(*x.shape[:-1], -1)

    def norm(self, path: str, x: np.ndarray) -> np.ndarray:
        x = x - x.mean(-1, keepdims=True)
        x /= np.sqrt(np.square(x).mean(-1, keepdims=True) + self.dtype(EPSILON))
        return x * self.weights[path + ".weight"] + self.weights[path + ".bias"]

    def hidden(self, ids: np.ndarray, observe: Observer | None = None) -> np.ndarray:
        """Last hidden states [passages, length, 384] of passages of ONE length: no padding, so no mask."""
        count, length = ids.shape
        embeddings = "embeddings."
        x = self.weights[embeddings + "word_embeddings.weight"][ids]
        x = x + self.weights[embeddings + "position_embeddings.weight"][:length]
        x += self.weights[embeddings + "token_type_embeddings.weight"][0]
        x = self.norm(embeddings + "LayerNorm", x)
        scale = self.dtype(1 / math.sqrt(HIDDEN // HEADS))
        for layer in range(LAYERS):
            path = f"encoder.layer.{layer}."
            query, key, value = (
                self.linear(path + module, x, observe).reshape(count, length, HEADS, -1).transpose(0, 2, 1, 3)
                for module in MODULES[:3]
            )
            scores = (query * scale) @ key.transpose(0, 1, 3, 2)
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            scores /= scores.sum(-1, keepdims=True)
            context = (scores @ value).transpose(0, 2, 1, 3).reshape(count, length, HIDDEN)
            attended = self.linear(path + "attention.output.dense", context, observe)
            x = self.norm(path + "attention.output.LayerNorm", attended + x)
            inner = self.linear(path + "intermediate.dense", x, observe)
            inner *= self.dtype(0.5) * (1 + self.erf(inner * self.dtype(math.sqrt(0.5))))
            x = self.norm(path + "output.LayerNorm", self.linear(path + "output.dense", inner, observe) + x)
        return x

    def embed(self, passages: list[Passage]) -> np.ndarray:
        """Embeddings [passages, 384]: mean of the last hidden states, divided by its L2 norm."""
        result = np.empty((len(passages), HIDDEN), self.dtype)
        for places in batches(passages):
            mean = self.hidden(np.stack([passages[p].ids for p in places])).mean(1)
            result[places] = mean / np.linalg.norm(mean, axis=-1, keepdims=True)
        return result


def batches(passages: list[Passage]) -> Iterable[list[int]]:
    """Places of passages in groups of one length, at most BATCH_TOKENS tokens a group."""
    by_length: dict[int, list[int]] = {}
    for place, passage in enumerate(passages):
        by_length.setdefault(len(passage.ids), []).append(place)
    for length, places in sorted(by_length.items()):
        step = max(1, BATCH_TOKENS // length)
        for start in range(0, len(places), step):
            yield places[start : start + step]


def read_text(file: Path, tokenizer_file: Path) -> list[Passage]:
    """The passages of a file of pairs, tokenized as the model's own tokenizer does, without padding."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    passages = []
    for line in file.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        for side in "ab":
            ids = np.array(tokenizer.encode(record[side]).ids, np.int64)
            passages.append(Passage(f"{record['d']}:{record['i']}", record["d"], side, ids))
    return passages


def read_tokens(file: Path) -> list[Passage]:
    """The passages of a safetensors file with `input_ids` and `attention_mask`; each is a pair of its own."""
    tensors = read_tensors(file)
    rows = zip(tensors["input_ids"], tensors["attention_mask"])
    return [Passage(f"row:{i}", "tokens", "a", ids[mask == 1]) for i, (ids, mask) in enumerate(rows)]


# --- collecting ---------------------------------------------------------------------------------------------------


def choose(passages: list[Passage], rows: int, per_passage: int, rng: np.random.Generator) -> list[tuple[Passage, np.ndarray]]:
    """Passages from the front, each with the sorted places of its tokens to keep, until there are `rows`."""
    chosen = []
    for passage in passages:
        if rows == 0:
            return chosen
        count = min(rows, per_passage, len(passage.ids))
        chosen.append((passage, np.sort(rng.choice(len(passage.ids), count, replace=False))))
        rows -= count
    if rows:
        raise SystemExit(f"too little text: {rows} rows are missing; lower --rows or raise --rows-per-passage")
    return chosen


def collect(model: Bert, chosen: list[tuple[Passage, np.ndarray]], layers: list[int], dtype: type) -> dict[str, np.ndarray]:
    """The inputs of the projections of `layers` at the chosen tokens, in the order of `chosen`."""
    starts = np.cumsum([0] + [len(tokens) for _, tokens in chosen])
    paths = {f"encoder.layer.{layer}.{module}" for layer in layers for module in MODULES}
    result = {path: np.empty((starts[-1], model.weights[path + ".weight"].shape[1]), dtype) for path in sorted(paths)}
    for places in batches([passage for passage, _ in chosen]):

        def observe(path: str, x: np.ndarray) -> None:
            if path in paths:
                for row, place in enumerate(places):
                    result[path][starts[place] : starts[place + 1]] = x[row, chosen[place][1]]

        model.hidden(np.stack([chosen[place][0].ids for place in places]), observe)
    for path, x in result.items():
        if not np.isfinite(x).all():
            raise SystemExit(f"{path}: an activation is not finite in {np.dtype(dtype).name}; use --dtype f32")
    return result


def write_activations(model: Bert, passages: list[Passage], options: argparse.Namespace) -> None:
    rng = np.random.default_rng(options.seed)
    pairs = list(dict.fromkeys(passage.pair for passage in passages))
    order = {pairs[place]: rank for rank, place in enumerate(rng.permutation(len(pairs)))}
    passages = sorted(passages, key=lambda passage: (order[passage.pair], passage.side))
    chosen = choose(passages, options.rows, options.rows_per_passage, rng)
    jobs = [(options.output, chosen)]
    if options.held_out:
        seen = {passage.pair for passage, _ in chosen}
        rest = [passage for passage in passages if passage.pair not in seen]
        jobs.append((options.held_out, choose(rest, options.rows, options.rows_per_passage, rng)))
    dtype = {"f16": np.float16, "f32": np.float32}[options.dtype]
    for file, part in jobs:
        tensors = collect(model, part, options.layers, dtype)
        used = list(dict.fromkeys(passage.pair for passage, _ in part))
        metadata = {"base_model": "sentence-transformers/all-MiniLM-L6-v2", "seed": str(options.seed), "pairs": " ".join(used)}
        save_file(tensors, file, metadata)
        print(
            f"{file}: {len(tensors)} projections, {options.rows} rows of {len(part)} passages from {len(used)} pairs, "
            f"{file.stat().st_size:,} bytes"
        )


# --- checking -----------------------------------------------------------------------------------------------------


def check(model: Path, golden: Path, adapters: Path | None) -> bool:
    """Compares the forward pass, in float64 and in float32, with reference outputs. True if all agree."""
    reference = read_tensors(golden)
    passages = read_tokens(golden)
    right = True

    def report(what: str, difference: float, limit: float) -> None:
        nonlocal right
        good = difference <= limit
        right &= good
        print(f"{what:<44} max difference {difference:.3e}, limit {limit:.0e}: {'right' if good else 'WRONG'}")

    names = sorted(name for name in reference if name.startswith(("emb.", "hidden.")))
    tags = list(dict.fromkeys(name[4:] for name in names if name.startswith("emb.")))
    # The references of the embeddings were rounded once to float32; those of the hidden states are float64.
    for dtype, embedding_limit, hidden_limit in ((np.float64, 2e-8, 1e-10), (np.float32, 1e-6, 1e-5)):
        bert = Bert(model, dtype)
        for tag in tags:
            if tag != "base":
                if adapters is None:
                    continue
                bert.set_adapter(read_adapter(adapters / tag.replace(".", "/", 1)))
            label = np.dtype(dtype).name
            report(f"{label} emb.{tag}", np.abs(bert.embed(passages) - reference[f"emb.{tag}"]).max(), embedding_limit)
            found = hidden_states(bert, reference)
            for state, difference in found.items():
                name = f"hidden.{tag}.{state}"
                if name in reference:
                    report(f"{label} {name}", difference(reference[name]), hidden_limit)
            bert.set_adapter(None)
    return right


def hidden_states(bert: Bert, reference: dict[str, np.ndarray]) -> dict[str, Callable[[np.ndarray], float]]:
    """For each hidden state of the reference, a function that gives the largest difference at unpadded places."""
    masks = reference["hidden.attention_mask"] == 1
    inputs_of = {
        "encoder.layer.0.attention.self.query": "embeddings_out",
        "encoder.layer.0.intermediate.dense": "layer0_attention_out",
        "encoder.layer.1.attention.self.query": "layer0_ffn_out",
    }
    states: dict[str, list[np.ndarray]] = {name: [] for name in [*inputs_of.values(), "encoder_out"]}

    def observe(path: str, x: np.ndarray) -> None:
        if path in inputs_of:
            states[inputs_of[path]].append(x[0])

    for ids, mask in zip(reference["hidden.input_ids"], masks):
        states["encoder_out"].append(bert.hidden(ids[mask][None], observe)[0])

    def difference(rows: list[np.ndarray]) -> Callable[[np.ndarray], float]:
        return lambda expected: max(float(np.abs(x - e[m]).max()) for x, e, m in zip(rows, expected, masks))

    return {name: difference(rows) for name, rows in states.items()}


# --- comparing ----------------------------------------------------------------------------------------------------


def recall(embeddings: np.ndarray, passages: list[Passage]) -> float:
    """Share of passages `a` whose nearest passage `b` of the same domain is their own."""
    hits = total = 0
    for domain in dict.fromkeys(passage.domain for passage in passages):
        a, b = (
            embeddings[[p for p, passage in enumerate(passages) if passage.domain == domain and passage.side == side]]
            for side in "ab"
        )
        hits += int(((a @ b.T).argmax(1) == np.arange(len(a))).sum())
        total += len(a)
    return hits / total


def compare(bert: Bert, passages: list[Passage], options: argparse.Namespace) -> bool:
    """Prints, for each adapter in both folders, how near the model's output stays. False if a mean cosine is too low."""
    if options.without:
        with safe_open(options.without, "np") as file:
            seen = set((file.metadata() or {}).get("pairs", "").split())
        passages = [passage for passage in passages if passage.pair not in seen]
    domains = list(dict.fromkeys(passage.domain for passage in passages))
    if options.pairs_per_domain:
        kept = {
            pair
            for domain in domains
            for pair in list(dict.fromkeys(p.pair for p in passages if p.domain == domain))[: options.pairs_per_domain]
        }
        passages = [passage for passage in passages if passage.pair in kept]
    decoded, originals = find_adapters(options.adapter), find_adapters(options.against)
    if len(decoded) == len(originals) == 1:
        originals = dict(zip(decoded, originals.values()))
    missing = sorted(set(decoded) - set(originals))
    if missing:
        raise SystemExit(f"{options.against}: no folder for {', '.join(missing)}")
    base_of: dict[str, np.ndarray] = {}
    print("Cosine of embeddings to those of base + original. `base`: without any adapter, what doing nothing gives.")
    head = f"{'adapter':<24} {'pairs':>6}  {'cos mean':>9} {'cos min':>9}  {'base mean':>9} {'base min':>9}"
    print(f"{head}  {'recall@1':>8} {'original':>8} {'base':>8}")
    sums, right = [], True
    for name in decoded:
        own = [domain for domain in domains if name == domain or name.endswith(("/" + domain, "_" + domain))]
        own = [max(own, key=len)] if own and options.domains == "own" else domains
        part = [passage for domain in own for passage in passages if passage.domain == domain]
        bert.set_adapter(None)
        for domain in own:
            if domain not in base_of:
                base_of[domain] = bert.embed([passage for passage in part if passage.domain == domain])
        base = np.concatenate([base_of[domain] for domain in own])
        bert.set_adapter(read_adapter(originals[name]))
        original = bert.embed(part)
        bert.set_adapter(read_adapter(decoded[name]))
        found = bert.embed(part)
        near, far = (found * original).sum(1), (base * original).sum(1)
        recalls = [recall(embeddings, part) for embeddings in (found, original, base)]
        row = [len(part) / 2, near.mean(), near.min(), far.mean(), far.min(), *recalls]
        right &= bool(near.mean() >= options.min_cosine)
        sums.append(row)
        print_comparison(name, row)
    if len(sums) > 1:
        table = np.array(sums)
        row = table.mean(0)
        row[[2, 4]] = table[:, [2, 4]].min(0)
        print_comparison("mean (of minima, least)", list(row))
    if not right:
        print(f"a mean cosine is below {options.min_cosine}", file=sys.stderr)
    return right


def print_comparison(name: str, row: list[float]) -> None:
    pairs, near, near_min, far, far_min, found, original, base = row
    print(
        f"{name:<24} {pairs:>6.0f}  {near:>9.5f} {near_min:>9.5f}  {far:>9.5f} {far_min:>9.5f}  "
        f"{found:>8.4f} {original:>8.4f} {base:>8.4f}"
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path(".minilm"), help="folder of the base model (default .minilm)")
    parser.add_argument("--text", type=Path, metavar="PAIRS", help="passages, JSON lines (needs the package tokenizers)")
    parser.add_argument("--tokens", type=Path, metavar="FILE", help="passages as token ids, safetensors")
    parser.add_argument("--domains", default="own", metavar="NAMES", help="which domains: names with commas between, `all`, or "
                        "`own`: all to collect from, and for --adapter the one that its name ends with (default)")  # fmt: skip
    job = parser.add_argument_group("check")
    job.add_argument("--check", type=Path, metavar="GOLDEN", help="reference outputs, safetensors")
    job.add_argument("--adapters", type=Path, metavar="DIR", help="check the reference outputs with adapters too")
    job = parser.add_argument_group("collect")
    job.add_argument("--output", type=Path, metavar="FILE", help="where the activations go")
    job.add_argument("--held-out", type=Path, metavar="FILE", help="a second file, from other pairs")
    job.add_argument("--rows", type=int, default=2048, help="rows a projection (default 2048)")
    job.add_argument("--rows-per-passage", type=int, default=8, metavar="N", help="at most so many (default 8)")
    job.add_argument("--layers", default="0,1,2,3,4,5", help="which layers (default all)")
    job.add_argument("--dtype", choices=("f16", "f32"), default="f16")
    job.add_argument("--seed", type=int, default=0)
    job = parser.add_argument_group("compare")
    job.add_argument("--adapter", type=Path, metavar="DIR", help="a decompressed adapter, or a folder of them")
    job.add_argument("--against", type=Path, metavar="DIR", help="the original, or a folder of originals")
    job.add_argument("--without", type=Path, metavar="FILE", help="leave out the pairs that this calibration file has seen")
    job.add_argument("--pairs-per-domain", type=int, metavar="N", help="only the first N pairs of each domain (default all)")
    job.add_argument("--min-cosine", type=float, default=-1.0, help="exit with 1 if a mean cosine is below this")
    options = parser.parse_args()
    options.layers = [int(layer) for layer in options.layers.split(",")]
    if (options.adapter is None) != (options.against is None):
        parser.error("--adapter and --against go together")
    if sum(job is not None for job in (options.check, options.output, options.adapter)) != 1:
        parser.error("give one of --check, --output, and --adapter with --against")
    if not options.check and (options.text is None) == (options.tokens is None):
        parser.error("give one of --text and --tokens")
    if options.adapter and not options.text:
        parser.error("--adapter needs the pairs of --text")
    if not set(options.layers) <= set(range(LAYERS)):
        parser.error(f"--layers: expected numbers from 0 to {LAYERS - 1}")
    return options


def main() -> int:
    options = arguments()
    weights = options.model / "model.safetensors"
    if not weights.is_file():
        raise SystemExit(f"{weights} is missing; fetch it: scripts/get_minilm.sh {options.model}")
    if options.check:
        return 0 if check(weights, options.check, options.adapters) else 1
    passages = read_text(options.text, options.model / "tokenizer.json") if options.text else read_tokens(options.tokens)
    if options.domains not in ("own", "all"):
        names = options.domains.split(",")
        absent = sorted(set(names) - {passage.domain for passage in passages})
        if absent:
            raise SystemExit(f"no passages of the domains {', '.join(absent)}")
        passages = [passage for passage in passages if passage.domain in names]
    bert = Bert(weights)
    if options.adapter:
        return 0 if compare(bert, passages, options) else 1
    write_activations(bert, passages, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
