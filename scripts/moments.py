"""Second moments of a model's inputs, outputs and gradients over text, for `trifuse shrink --moments`. Needs PyTorch, transformers and safetensors.

    python3 scripts/moments.py MODEL -o moments.safetensors --tokens 262144 --window 2048 wiki.txt web.txt

MODEL is a folder or a name that transformers loads. Windows are taken in turn from each text, as `trifuse shrink` takes them, and run some at a time. Of a projection with no
more outputs than inputs the moment of its outputs and of the gradients there are kept; of one with more, the moment of its inputs and of the gradients
that reach them through it. Sums are in float64, means over tokens in the file, in float32. The loss is the sum over the tokens of a window.
"""

import argparse
import itertools
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer


def windows(tokenizer, texts, length):
    """Windows of `length` tokens, in turn from each text. A file is one document, with the token that ends a text behind it."""
    cut = []
    for path in texts:
        with open(path, encoding="utf-8") as file:
            ids = tokenizer(file.read().strip(), add_special_tokens=False).input_ids
        end = tokenizer.convert_tokens_to_ids("<|endoftext|>")
        if end is None or end == tokenizer.unk_token_id:
            end = tokenizer.eos_token_id
        ids.append(end)
        cut.append([ids[at : at + length] for at in range(0, len(ids) - length + 1, length)])
    for row in itertools.zip_longest(*cut):
        yield from (window for window in row if window is not None)


class Sums:
    """Sums over tokens of one projection."""

    def __init__(self, linear):
        self.linear, self.wide = linear, linear.out_features <= linear.in_features
        self.sums = {}

    def add(self, name, value):
        value = value.double()
        self.sums[name] = value if name not in self.sums else self.sums[name].add_(value)

    def forward(self, _module, inputs, output):
        x = inputs[0].detach().reshape(-1, self.linear.in_features)
        self.add("sizes", x.abs().sum(0))
        rows = output.detach().reshape(-1, self.linear.out_features) if self.wide else x
        rows = rows.float()
        self.add("outputs" if self.wide else "inputs", rows.T @ rows)

    def backward(self, _module, _inputs, outputs):
        g = outputs[0].detach().reshape(-1, self.linear.out_features).float()
        if not self.wide:
            g = g @ self.linear.weight.detach().float()
        self.add("gradients", g.T @ g)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("texts", nargs="+")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--forward", metavar="FILE", help="also write the moments without gradients, as of a model that has no backward pass")
    parser.add_argument("--tokens", type=int, default=262144)
    parser.add_argument("--window", type=int, default=2048)
    parser.add_argument("--skip", type=int, default=0, help="windows at the start that are left to others, as what a result is measured on")
    parser.add_argument("--batch", type=int, help="windows that run at once; 4 on a GPU, else 1")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    batch = arguments.batch or (1 if arguments.device == "cpu" else 4)

    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    tokenizer.model_max_length = 10**9
    model = AutoModelForCausalLM.from_pretrained(arguments.model).to(arguments.device, torch.float32).eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    named = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and ".layers." in name}
    sums = {name: Sums(module) for name, module in named.items()}
    for name, module in named.items():
        module.register_forward_hook(sums[name].forward)
        module.register_full_backward_hook(sums[name].backward)

    count = 0
    wanted = -(-arguments.tokens // arguments.window)
    taken = itertools.islice(windows(tokenizer, arguments.texts, arguments.window), arguments.skip, arguments.skip + wanted)
    while rows := list(itertools.islice(taken, batch)):
        ids = torch.tensor(rows, device=arguments.device)
        states = model.get_input_embeddings()(ids).requires_grad_(True)
        logits = model(inputs_embeds=states).logits[:, :-1]
        torch.nn.functional.cross_entropy(logits.float().reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1), reduction="sum").backward()
        count += ids.numel()
        print(f"\r{count} of {arguments.tokens} tokens", end="", file=sys.stderr)
    print(file=sys.stderr)
    if count == 0:
        sys.exit(f"no window of {arguments.window} tokens in the texts")

    tensors = {f"{name}.{kind}": (value / count).float().cpu().contiguous() for name, of in sums.items() for kind, value in of.sums.items()}
    save_file(tensors, arguments.output, metadata={"tokens": str(count)})
    if arguments.forward:
        forward = {name: tensor for name, tensor in tensors.items() if not name.endswith(".gradients")}
        save_file(forward, arguments.forward, metadata={"tokens": str(count)})


if __name__ == "__main__":
    main()
