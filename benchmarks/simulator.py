"""The simulator against a published table: verl's fully asynchronous training on 128 cards, by staleness threshold.

python benchmarks/simulator.py    # --quick: a quarter of engines and groups
python benchmarks/simulator.py --stragglers    # compares what may happen to groups that would become too stale
python benchmarks/simulator.py --rollouts 1000000    # time and memory of a long run

One set of parameters for all rows, which was chosen to fit this table as a whole: the figures show how well the model can
describe the run, and predict nothing. A row differs in its threshold and in the published time of its updates, which also says
how long its responses were.
"""

import sys
import time
from pathlib import Path
from typing import Any

from reroll.simulate import Scenario, simulate

PUBLISHED = {
    0.0: (231.34, 128.47, 98.77),
    0.1: (171.30, 58.17, 109.12),
    0.3: (146.11, 38.88, 103.22),
    0.5: (150.63, 33.14, 113.16),
}
"""Seconds of a step, of its wait for generation, and of its updates (`update_actor`), by staleness threshold."""
MEAN_UPDATE_S = sum(update_s for _, _, update_s in PUBLISHED.values()) / len(PUBLISHED)
FETCHES = 4
"""verl's `trigger_parameter_sync_step`: training steps between two weight syncs; its table counts them as one step."""


def scenario(threshold: float, syncs: int, scale: float = 1.0) -> Scenario:
    """Return verl's run, or a part of it: fetches of 128 groups of 16, 16 engines with 16 groups each at once."""
    update_s, batch = PUBLISHED[threshold][2], round(128 * scale)
    window = {
        "type": "staleness_window",
        "max_staleness": FETCHES - 1 + FETCHES * threshold,
        "batch": batch,
        "sync_interval": FETCHES,
    }
    return Scenario.of(
        {
            "buffer": {"sampler": "fifo", "rate_limiter": window},
            "engines": {
                "count": round(16 * scale),
                "tokens_per_s": 200,
                "half_speed_at": 128,
                "max_running": 1024,
                "prefill_tokens_per_s": 10_000,
            },
            "lengths": {"median": 1600 * update_s / MEAN_UPDATE_S, "sigma": 0.85, "cap": 28_672},
            "group": {"members": 16, "prompt_tokens": 0},
            "trainer": {
                "batch": batch,
                "seconds_per_step": update_s / FETCHES + 1,
                "sync_interval": FETCHES,
                "sync_s": 0.1,
                "on_sync": "abort",
            },
            "concurrency": round(256 * scale),
            "steps": FETCHES * syncs,
            "warm_up": FETCHES * 2,
        }
    )


def straggling(bound: int, stragglers: str, steps: int) -> Scenario:
    """Return a run whose longest responses take several training steps; late groups expire only under a bound."""
    window: dict[str, Any] = {"type": "staleness_window", "max_staleness": bound, "batch": 32}
    buffer: dict[str, Any] = {"sampler": "stalest", "rate_limiter": window}
    if stragglers == "expire":
        buffer["max_staleness"] = bound
    elif stragglers != "late":
        window["stragglers"] = stragglers
    return Scenario.of(
        {
            "buffer": buffer,
            "engines": {
                "count": 8,
                "tokens_per_s": 100,
                "half_speed_at": 32,
                "max_running": 256,
                "prefill_tokens_per_s": 8000,
            },
            "lengths": {"median": 1500, "sigma": 1.0, "cap": 16384},
            "group": {"members": 8},
            "trainer": {"batch": 32, "seconds_per_step": 40},
            "steps": steps,
            "warm_up": 10,
        }
    )


def compare_stragglers(steps: int) -> None:
    """Print a line for each bound and mode."""
    print(
        "max_staleness  stragglers  step s  wait s  tokens/s  mean  largest  wasted  late  long groups trained"
    )
    for bound in (1, 2, 4):
        for mode in ("late", "expire", "wait", "resume"):
            row = simulate(straggling(bound, mode, steps)).row()
            print(
                f"{bound:>13}  {mode:>10}  {row['step_s']:6.1f}  {row['wait_s']:6.1f}  {row['trained_tokens_per_s']:8,.0f}  "
                f"{row['mean_staleness']:4.2f}  {row['max_staleness']:7.0f}  {row['waste']:6.1%}  {row['late']:4.1%}  "
                f"{row['long_trained']:6.1%}"
            )


def simulate_many(rollouts: int) -> None:
    """Print memory and CPU time at every tenth of a long run."""
    batch, members = 64, 8
    steps = -(-rollouts // (batch * members))
    window = {"type": "staleness_window", "max_staleness": 1, "batch": batch}
    long = Scenario.of(
        {
            "buffer": {"sampler": "stalest", "rate_limiter": window},
            "engines": {"count": 16, "max_running": 4096},
            "lengths": {"cap": 28_672},
            "group": {"members": members},
            "trainer": {"batch": batch, "seconds_per_step": 20},
            "steps": steps,
        }
    )
    started = time.process_time()

    def progress(step: int, _: int) -> None:
        if step % (steps // 10) == 0:
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
            seconds = time.process_time() - started
            print(
                f"{step * batch * members:>9,} rollouts: {pages * 4096 / 2**20:.1f} MB, {seconds:.0f} s of CPU time",
                flush=True,
            )

    simulate(long, progress=progress)


def main() -> None:
    """Print the table."""
    is_quick = "--quick" in sys.argv
    if "--stragglers" in sys.argv:
        compare_stragglers(30 if is_quick else 100)
        return
    if "--rollouts" in sys.argv:
        simulate_many(int(sys.argv[sys.argv.index("--rollouts") + 1]))
        return
    print("threshold  step: verl -> simulated        wait: verl -> simulated        mean staleness  real s")
    for threshold, (step_s, wait_s, _) in PUBLISHED.items():
        started = time.perf_counter()
        result = simulate(scenario(threshold, 8, scale=0.25) if is_quick else scenario(threshold, 12))
        step, wait = FETCHES * result.step_s, FETCHES * result.wait_s
        print(
            f"{threshold:>9}  {step_s:>4.0f} -> {step:4.0f} s ({step / step_s - 1:+5.0%})        "
            f"{wait_s:>4.0f} -> {wait:4.0f} s ({wait / wait_s - 1:+5.0%})        "
            f"{result.mean_staleness / FETCHES:>13.2f}  {time.perf_counter() - started:6.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
