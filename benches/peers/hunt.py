"""Measures PyTorch on shapes as they are asked for: `trifuse bench hunt --peers python3` starts it and writes to it.

The first line of its input says how to time, and is answered by who measures; every other line is a shape, as a report of
`trifuse bench SUITE --json` has it, and is answered by the peers of that shape, as benches/peers/run.py tells them. Every answer is compared
with float64 before it is timed. TORCH_COMPILE_DISABLE=0 has peers compiled too, which takes half a minute a shape."""

import json
import os
import sys

os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
# What libraries print must not come between answers.
answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)


def answer(said: dict) -> None:
    answers.write(json.dumps(said) + "\n")
    answers.flush()


def main() -> None:
    import torch

    from run import peers_of
    from timing import Timer

    first = sys.stdin.readline()
    if not first:
        return
    if not torch.cuda.is_available():
        sys.exit(f"PyTorch {torch.__version__} finds no GPU")
    torch.manual_seed(0)
    timer = Timer(json.loads(first)["timing"])
    answer({"peer": f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}", "device": torch.cuda.get_device_name()})
    for line in sys.stdin:
        shape = json.loads(line)
        peers = peers_of(timer, shape)
        # After a kernel that failed, nothing that PyTorch says on this device is to be believed: it ends here.
        torch.cuda.synchronize()
        answer({"name": shape["name"], "peers": peers})


if __name__ == "__main__":
    main()
