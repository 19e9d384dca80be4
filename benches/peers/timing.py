"""Times work on the GPU the way `trifuse bench` does: events, caches emptied or full, no host time in it."""

import statistics
import time

import torch

MOST_FLUSHES = 16
TOGETHER = 10
# Seconds of work before the device rests for as long, and of a rest at most: see crates/cli/src/bench/timing.rs.
STRETCH, LONGEST_REST = 4e-3, 0.05


def rest(seconds: float) -> None:
    """Lets a device that was at work for so long be idle for as long, where that is long enough to count."""
    if seconds * TOGETHER > STRETCH:
        time.sleep(min(seconds, LONGEST_REST))


class Timer:
    """One for all peers of a report; takes its schedule from that."""

    def __init__(self, timing: dict):
        self.warmup, self.iterations = timing["warmup"], timing["iterations"]
        self.limit = timing["limit_seconds"]
        half = timing["flush_bytes"] // 2
        self.source = torch.full((half,), 0x3C, dtype=torch.uint8, device="cuda")
        self.target = torch.empty_like(self.source)
        self.flush_seconds = min(self._between(self._flush) for _ in range(5))

    def _flush(self) -> None:
        self.target.copy_(self.source)

    @staticmethod
    def _between(work) -> float:
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        work()
        last.record()
        last.synchronize()
        return first.elapsed_time(last) * 1e-3

    def time(self, work, warm: bool) -> dict:
        """Seconds of one call of `work` in the middle of all, and their number: of those that the device did not have to wait
        for, and `waited` where it had to for each."""
        host = float("inf")
        for _ in range(max(self.warmup, 2)):
            torch.cuda.synchronize()
            pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            pair[0].record()
            began = time.perf_counter()
            work()
            host = min(host, time.perf_counter() - began)
            pair[1].record()
            torch.cuda.synchronize()
            run = pair[0].elapsed_time(pair[1]) * 1e-3
            rest(run)
        # Enough work ahead that the host is done before the device begins.
        flushes = max(1, min(MOST_FLUSHES, -int(-2 * (host + 20e-6) // self.flush_seconds)))
        turn = self.flush_seconds * flushes + (2 if warm else 1) * run
        together = max(1, min(TOGETHER, int(STRETCH / turn)))
        free, held, marks = [], [], []
        deadline = time.perf_counter() + self.limit
        for number in range(1, self.iterations + 1):
            for _ in range(flushes):
                self._flush()
            if warm:
                work()
            pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            pair[0].record()
            work()
            pair[1].record()
            # The device is past the first mark before the host is done: what lies between may hold a wait for the host.
            marks.append((pair, held if pair[0].query() else free))
            if len(marks) == together or number == self.iterations:
                torch.cuda.synchronize()
                rest(turn * len(marks))
                for (first, last), times in marks:
                    times.append(first.elapsed_time(last) * 1e-3)
                marks = []
                if time.perf_counter() > deadline:
                    break
        times = free or held
        return {"median": statistics.median(times), "min": min(times), "count": len(times)} | ({} if free else {"waited": True})


def captured(work):
    """`work` as a CUDA graph: what is returned replays it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def relative_l2(found: torch.Tensor, expected: torch.Tensor) -> float:
    """‖found − expected‖ / ‖expected‖ in float64."""
    found, expected = found.double(), expected.double()
    return float((found - expected).norm() / expected.norm())
