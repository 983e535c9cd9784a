"""The simulator against a published table: verl's fully asynchronous training on 128 cards, by staleness threshold.

python benchmarks/simulator.py

One set of parameters for all rows: nothing is fitted to a cell.
"""

import sys
import time

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


def main() -> None:
    """Print the table."""
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
