"""Block-sparse attention by cuSPARSE, through PyTorch: a sampled product for the scores (SDDMM), a softmax of each row's stored
scores, a sparse product with V (SpMM).

PyTorch has the sampled product in f32 alone, and no kernel for blocks: every element of a listed block is a stored one. So the
row says what cuSPARSE gives a user, not what a kernel for blocks can do."""

import warnings

import torch

# PyTorch says once a process that these layouts may change.
warnings.filterwarnings("ignore", message="Sparse CSR tensor support")

NAME = "cuSPARSE, f32 (SDDMM, softmax, SpMM)"
# Stored scores of all heads above which the indices and values of one step do not fit beside the rest.
MOST = 1 << 28


def rows_of(listed: torch.Tensor, size: int, queries: int, keys: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Compressed rows of the elements of the listed blocks: where each row begins, and its columns."""
    lengths, columns = [], []
    within = torch.arange(size, device=listed.device)
    for row, blocks in enumerate(listed):
        expanded = (torch.nonzero(blocks) * size + within).flatten()
        expanded = expanded[expanded < keys]
        # The rows of a row of blocks list the same columns; the last may have fewer rows.
        rows = min(size, queries - row * size)
        lengths += [len(expanded)] * rows
        columns.append(expanded.repeat(rows))
    starts = torch.tensor([0, *lengths], device=listed.device).cumsum(0)
    return starts, torch.cat(columns)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, listed: torch.Tensor, size: int):
    """The work: q, k, v `[batch, heads, tokens, head_dim]`, `listed` `[rows, columns]` of blocks of `size`."""
    batch, heads, queries, d = q.shape
    keys, grouped = k.shape[2], heads // k.shape[1]
    stored = int(listed.sum()) * size * size
    if stored * batch * heads > MOST:
        raise NotImplementedError(f"cuSPARSE: {stored * batch * heads / 1e9:.1f}e9 stored scores")
    starts, columns = rows_of(listed, size, queries, keys)
    owner = torch.repeat_interleave(torch.arange(queries, device=q.device), starts.diff())
    starts, columns = starts.int(), columns.int()
    pattern = torch.sparse_csr_tensor(starts, columns, torch.zeros(len(columns), device=q.device), (queries, keys))
    # What a caller would convert once, beside the weights.
    q, k, v = (tensor.float() for tensor in (q, k, v))

    def head(one: int, number: int) -> torch.Tensor:
        key, value = k[one, number // grouped], v[one, number // grouped]
        scores = torch.sparse.sampled_addmm(pattern, q[one, number], key.t(), beta=0.0, alpha=d**-0.5).values()
        most = torch.segment_reduce(scores, "max", offsets=starts.long(), unsafe=True)
        weights = (scores - most[owner]).exp()
        total = torch.segment_reduce(weights, "sum", offsets=starts.long(), unsafe=True)
        return torch.sparse_csr_tensor(starts, columns, weights, (queries, keys)) @ value / total[:, None]

    return lambda: torch.stack([torch.stack([head(one, number) for number in range(heads)]) for one in range(batch)])
