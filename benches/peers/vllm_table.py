"""Steps and first tokens of vLLM's engine beside ours: python3 benches/peers/vllm_table.py OURS.json THEIRS.json... [--markdown docs/llm.md]

OURS is what `trifuse eval --suite speed --drawn CONFIG --json` wrote and THEIRS what benches/peers/vllm_engine.py did: a pair for each model, in turn, of one machine, which
both say; others are refused. A row holds what both measured. The table goes to standard output, with --markdown also between two marks in FILE."""

import argparse
import json
import pathlib

from table import insert, markdown, plain

HEAD = ["model", "adapters", "at once", "step, vLLM", "here", "times as fast", "prompts read, vLLM", "here", "times as fast"]
FORMAT = "trifuse.llm-eval/1"


def read(file: pathlib.Path) -> dict:
    report = json.loads(file.read_text(encoding="utf-8"))
    if report.get("format") != FORMAT:
        raise SystemExit(f"error: {file}: expected a report of {FORMAT}, found {report.get('format')}")
    return report


def place(report: dict) -> dict:
    """Where a report was made; None for what it does not say."""
    device, environment = report.get("device") or {}, report.get("environment") or {}
    return {"device": device.get("name"), "start of the machine (environment.boot)": environment.get("boot")}


def agree(reports: dict[pathlib.Path, dict]) -> None:
    """Ends the program where reports are not of one device and machine, and of one type."""
    (first, told), *others = ((file, place(report) | {"dtype": report["dtype"]}) for file, report in reports.items())
    for key, value in told.items():
        if value is None:
            raise SystemExit(f"error: {first}: expected a report that tells its {key}; measure it again")
        for file, other in others:
            if other[key] != value:
                raise SystemExit(f"error: {file}: expected the {key} of {first}, {value}; found {other[key]}. Measure both in one call (scripts/engine.sh)")


def rows_of(speed: list[dict]) -> dict[tuple, dict]:
    """By what was asked of the engine."""
    return {(row["model"], row["adapters"], row["batch"], row["prompt"], row["answer"]): row for row in speed}


def name(model: str) -> str:
    """The folder of a configuration, or the last part of what a model is called."""
    path = pathlib.PurePath(model)
    return path.parent.name if path.name == "config.json" else path.name


def milliseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 20 else f"{value:.2f}"


def rows(ours: dict, theirs: dict) -> list[list[str]]:
    own, other = rows_of(ours["speed"]), rows_of(theirs["speed"])
    table = []
    # By the numbers: a short time is given to what matters most first.
    for key in sorted(own.keys() & other.keys()):
        cells = []
        for factor, field in ((1, "step_ms_p50"), (1e3, "prefill_seconds")):
            pair = [factor * found[key][field] for found in (other, own)]
            cells += [*map(milliseconds, pair), f"{pair[0] / pair[1]:.2f}"]
        model, adapters, batch, *_ = key
        table.append([name(model), str(adapters) if adapters else "none", str(batch), *cells])
    return table


def lengths(reports: list[dict]) -> str:
    pairs = sorted({(row["prompt"], row["answer"]) for report in reports for row in report["speed"]})
    return "; ".join(f"prompts of {prompt} drawn tokens, answers of {answer}" for prompt, answer in pairs)


def heading(ours: dict, theirs: dict) -> str:
    """Where, with what and by what rule."""
    here, there = ours["environment"], theirs["environment"]
    built = "" if here.get("optimised", True) else ", built without optimisation"
    return (
        f"{ours['device']['name']}; trifuse {here['version']}, revision {here['revision'][:7]}{built}; vLLM {there['vllm']}, PyTorch {there['torch']}, the fastest of "
        f"{theirs['repeats']} runs; {ours['dtype']}, weights and adapters drawn, greedy, no prefix cache; {lengths([ours, theirs])}. Milliseconds, steps in the median."
    )


def notes(pairs: list[tuple[dict, dict]]) -> list[str]:
    told = []
    for ours, theirs in pairs:
        model = name(ours["model"])
        if theirs["engines"] and ours.get("start_seconds"):
            engines = "; ".join(f"{engine['start_seconds']:.1f} s{' with room for adapters' if engine['adapters'] else ''}" for engine in theirs["engines"])
            told.append(f"{model}, from start to the first token: vLLM {engines}; here {ours['start_seconds']:.1f} s")
        checked = [row for row in theirs["speed"] if row.get("first_alone")]
        if checked:
            same = sum(row["first_alone"] == "same" for row in checked)
            told.append(f"{model}: in {same} of {len(checked)} batches of vLLM's the first request has the greedy tokens that it has alone")
        told += [f"{model}, {row['batch']} requests, {row['adapters']} adapters: vLLM: {row['why']}" for row in theirs.get("wrong", [])]
        own, other = rows_of(ours["speed"]), rows_of(theirs["speed"])
        for where, absent in (("by vLLM", own.keys() - other.keys() - rows_of(theirs.get("wrong", [])).keys()), ("here", other.keys() - own.keys())):
            if absent:
                batches = ", ".join(f"{batch} requests with {adapters or 'no'} adapters" for _, adapters, batch, *_ in sorted(absent))
                told.append(f"{model}: not measured {where}: {batches}")
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reports", type=pathlib.Path, nargs="+", metavar="OURS THEIRS")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE")
    arguments = parser.parse_args()
    if len(arguments.reports) % 2:
        parser.error("expected pairs of reports, ours and theirs")
    reports = {file: read(file) for file in arguments.reports}
    agree(reports)
    pairs = [(reports[ours], reports[theirs]) for ours, theirs in zip(arguments.reports[::2], arguments.reports[1::2])]
    table = [row for pair in pairs for row in rows(*pair)]
    if not table:
        raise SystemExit("not measured: no batch that both reports hold")
    told = notes(pairs)
    print("\n".join([heading(*pairs[0]), plain([HEAD, *table]), *told]))
    if arguments.markdown:
        page = [heading(*pairs[0]), markdown([HEAD, *table]), *(["\n".join(f"- {note}" for note in told)] if told else [])]
        insert(arguments.markdown, "vllm", "\n\n".join(page))


if __name__ == "__main__":
    main()
