"""The simulator against a published table: verl's fully asynchronous training on 128 cards, by staleness threshold.

python benchmarks/simulator.py
python benchmarks/simulator.py --stragglers    # compares what may happen to groups that would become too stale
python benchmarks/simulator.py --rollouts 1000000    # time and memory of a long run

One set of parameters for all rows: nothing is fitted to a cell.
"""

import resource
import sys
import time
from typing import Any

from reroll.simulate import Scenario, simulate

PUBLISHED = {0.0: (231, 128), 0.1: (171, 58), 0.3: (146, 39), 0.5: (151, 33)}
"""Seconds of a step, and of its wait for generation, by staleness threshold."""
UPDATES = 4  # training steps between two weight syncs; verl counts all of them as one step


def scenario(threshold: float, steps: int) -> Scenario:
    """Return verl's run: a threshold of 0.1 lets a tenth of the groups of a step start ahead of it."""
    window = {
        "type": "staleness_window",
        "max_staleness": UPDATES - 1 + UPDATES * threshold,
        "batch": 32,
        "sync_interval": UPDATES,
    }
    return Scenario.of(
        {
            "buffer": {"sampler": "stalest", "rate_limiter": window},
            "engines": {"count": 16, "tokens_per_s": 190, "half_speed_at": 32, "max_running": 4096},
            "lengths": {"median": 1500, "sigma": 1.0, "cap": 28672},
            "group": {"members": 16, "prompt_tokens": 0},
            "trainer": {"batch": 32, "seconds_per_step": 27, "sync_interval": UPDATES, "sync_s": 0.1},
            "steps": steps,
            "warm_up": 16,
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
    """Print the time of a long run, and the memory after a tenth of it and at its end."""
    batch, members, memory = 64, 8, []
    steps = -(-rollouts // (batch * members))
    data = scenario(0.5, 20).model_dump()
    window = {"type": "staleness_window", "max_staleness": 1, "batch": batch}
    long = Scenario.of(
        {
            **data,
            "buffer": {"sampler": "stalest", "rate_limiter": window},
            "group": {"members": members},
            "trainer": {"batch": batch, "seconds_per_step": 20},
            "steps": steps,
        }
    )

    def progress(step: int, _: int) -> None:
        if step in (max(1, steps // 10), steps):
            memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)

    started = time.process_time()
    simulate(long, progress=progress)
    seconds = time.process_time() - started
    print(
        f"{steps * batch * members:,} rollouts in {seconds:.0f} s of CPU time ({steps * batch * members / seconds:,.0f} a second); "
        f"largest memory {memory[0]:.0f} MB after a tenth of the steps, {memory[-1]:.0f} MB at the end"
    )


def main() -> None:
    """Print the table."""
    if "--stragglers" in sys.argv:
        compare_stragglers(30 if "--quick" in sys.argv else 100)
        return
    if "--rollouts" in sys.argv:
        simulate_many(int(sys.argv[sys.argv.index("--rollouts") + 1]))
        return
    steps = 40 if "--quick" in sys.argv else 80
    print("threshold  step: verl -> simulated        wait: verl -> simulated        mean staleness  real s")
    for threshold, (step_s, wait_s) in PUBLISHED.items():
        started = time.perf_counter()
        result = simulate(scenario(threshold, steps))
        step, wait = UPDATES * result.step_s, UPDATES * result.wait_s
        print(
            f"{threshold:>9}  {step_s:>4} -> {step:4.0f} s ({step / step_s - 1:+5.0%})        "
            f"{wait_s:>4} -> {wait:4.0f} s ({wait / wait_s - 1:+5.0%})        "
            f"{result.mean_staleness / UPDATES:>13.2f}  {time.perf_counter() - started:6.1f}"
        )


if __name__ == "__main__":
    main()
