"""The picture of docs/trl.md: reward against generated tokens, with and without replay, of real trainings by TRL.

The task and the trainer are those of examples/trl_replay.py; each line is the mean of several seeds, its band the least
and the largest. Needs TRL: run it in an environment of `make test-trl`. Seeded: the same machine makes the same picture.

    .venv-trl/1.16.0/bin/python benchmarks/trl_picture.py
"""

import argparse
import gc
import sys
import tempfile
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from pictures import BLUE, FAINT, ORANGE, Box, axes, number, picture, text

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from trl_replay import train

FOLDER = Path(__file__).parents[1] / "docs" / "images"
STEPS, SMOOTHED = 200, 8
KINDS: dict[str, dict[str, Any] | None] = {"GRPOTrainer": None, "ReplayGRPOTrainer": {}}


def rewards(seed: int, replay_buffer: dict[str, Any] | None) -> tuple[list[float], list[float]]:
    """Train once; return the generated tokens up to each step, and its reward as a mean over steps before it."""
    with tempfile.TemporaryDirectory() as where:
        trainer = train(where, steps=STEPS, seed=seed, replay_buffer=replay_buffer)
    rows = [row for row in trainer.state.log_history if "reward" in row]
    tokens = list(accumulate(32 * row["completions/mean_length"] for row in rows))
    found = [row["reward"] for row in rows]
    smooth = [found[max(0, end - SMOOTHED) : end] for end in range(1, len(found) + 1)]
    return tokens, [sum(part) / len(part) for part in smooth]


def drawn(runs: dict[str, list[list[float]]], tokens: list[float]) -> str:
    title = "What is learned from the same number of generated tokens?"
    seeds = len(next(iter(runs.values())))
    said = f"A model that learns to copy a letter, on the CPU: mean of {seeds} seeds, and the least and largest of them."
    box = Box(52, 470, 76, 280, 0, tokens[-1], 1)
    parts = [text(20, 30, title, size=15, bold=True), text(20, 48, said, color=FAINT)]
    parts += axes(box, range(0, int(tokens[-1]) + 1, 1600), (0, 0.25, 0.5, 0.75, 1))
    for (name, found), color in zip(runs.items(), (ORANGE, BLUE), strict=True):
        steps = list(zip(*found, strict=True))
        low, high, mean = ([of(step) for step in steps] for of in (min, max, lambda one: sum(one) / len(one)))

        def line(values: list[float], *, back: bool = False) -> str:
            points = [f"{number(box.x(x))},{number(box.y(y))}" for x, y in zip(tokens, values, strict=True)]
            return " ".join(reversed(points) if back else points)

        parts.append(f'<polygon points="{line(low)} {line(high, back=True)}" fill="{color}" opacity="0.15"/>')
        parts.append(f'<polyline points="{line(mean)}" fill="none" stroke="{color}" stroke-width="2"/>')
        half = next((x for x, y in zip(tokens, mean, strict=True) if y >= 0.5), None)
        words = (
            f"{name}: half right after {half:.0f} tokens" if half else f"{name}: {mean[-1]:.2f} at the end"
        )
        parts.append(
            text(box.right + 12, box.y(mean[-1]) + (14 if color == ORANGE else 0), words, color=color)
        )
    parts.append(
        text(52, 312, f"across: generated tokens; up: reward, over {SMOOTHED} steps", size=10, color=FAINT)
    )
    return picture(828, 328, title, parts)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the picture of docs/trl.md.")
    parser.add_argument("--to", type=Path, default=FOLDER)
    parser.add_argument("--seeds", type=int, default=4)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    gc.freeze()  # TRL collects garbage at each start: not that of torch's modules
    runs: dict[str, list[list[float]]] = {name: [] for name in KINDS}
    for seed in range(arguments.seeds):
        for name, replay_buffer in KINDS.items():
            tokens, found = rewards(seed, replay_buffer)
            runs[name].append(found)
            print(f"seed {seed}, {name}: reward {found[-1]:.2f} after {tokens[-1]:.0f} tokens", flush=True)
    made = drawn(runs, tokens)
    (arguments.to / "trl_replay.svg").write_text(made, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
