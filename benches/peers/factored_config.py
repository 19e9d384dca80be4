"""A configuration whose projections are factored, for weights that are drawn:

    python3 benches/peers/factored_config.py CONFIG.json -o OUT.json q_proj,o_proj=1433 k_proj,v_proj=573 gate_proj,up_proj,down_proj=2230

Every layer has the same ranks. Projections that are not named stay whole. Needs no package."""

import argparse
import json
import pathlib

PARENTS = {"q_proj": "self_attn", "k_proj": "self_attn", "v_proj": "self_attn", "o_proj": "self_attn", "gate_proj": "mlp", "up_proj": "mlp", "down_proj": "mlp"}


def named(text: str) -> dict[str, int]:
    """Projections and their rank."""
    names, _, rank = text.partition("=")
    names = names.split(",")
    if not rank.isdigit() or int(rank) < 1 or not set(names) <= set(PARENTS):
        raise argparse.ArgumentTypeError(f"expected NAME,NAME=RANK of {', '.join(PARENTS)}, found {text!r}")
    return {name: int(rank) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=pathlib.Path)
    parser.add_argument("ranks", type=named, nargs="+", metavar="NAME,NAME=RANK")
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    config = json.loads(arguments.config.read_text(encoding="utf-8"))
    ranks = {name: rank for some in arguments.ranks for name, rank in some.items()}
    of = {f"model.layers.{layer}.{PARENTS[name]}.{name}": rank for layer in range(config["num_hidden_layers"]) for name, rank in ranks.items()}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(config | {"low_rank": {"method": "drawn", "ranks": of}}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
