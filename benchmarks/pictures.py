"""The pictures of docs/replay.md, made by running the real buffer through a simulated training.

Each sampler sees the same training: in 60 steps producers put 12 to 20 groups a step, the trainer samples 32, so a group
is used twice on average. Counted is the steady state. For the window, producers could make groups faster than the
trainer uses them. Everything is seeded: the same pictures, byte for byte, each time.

    python benchmarks/pictures.py
"""

import argparse
import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from reroll import (
    Fifo,
    LeastUsed,
    Lifo,
    Mixture,
    Prioritized,
    ReplayBuffer,
    ReplayBufferConfig,
    Reservation,
    Rollout,
    StalenessWindow,
    Status,
    SyncReplayBufferConfig,
    Uniform,
    WaitTimeout,
)
from svg import BLUE, FAINT, GRID, ORANGE, number, picture, text

TASK = "math"
FOLDER = Path(__file__).parents[1] / "docs" / "pictures"

# --- samplers

STEPS, STEADY, SETTLED = (
    60,
    20,
    40,
)  # counted from step 21 on; groups put after step 40 still have uses to come
BATCH, CAPACITY, USES = 32, 256, 8
RESPONSES = 8
SAMPLERS = {
    "fifo": Fifo(),
    "lifo": Lifo(),
    "uniform": Uniform(),
    "least_used": LeastUsed(),
    "prioritized": Prioritized(),
    "prioritized, half_life=4": Prioritized(half_life=4),
    "and reuse_decay=0.5": Prioritized(half_life=4, reuse_decay=0.5),
    "mixture, half is fresh": Mixture(0.5, replay=Prioritized(half_life=4)),
}


class Trained(NamedTuple):
    """What one sampler did."""

    staleness: Counter[int]
    """Samples, by the staleness of their group."""
    uses: Counter[int]
    """Groups, by how often they were sampled in their life."""


def made_group(rng: random.Random) -> list[Rollout]:
    """Make a group for a prompt that is solved with some chance; about two of nine groups have equal rewards."""
    chance = rng.random()
    rewards = [float(rng.random() < chance) for _ in range(RESPONSES)]
    return [Rollout(response_ids=[1], reward=reward, status=Status.COMPLETED) for reward in rewards]


async def train(sampler: Any) -> Trained:
    rng = random.Random(0)
    buffer = ReplayBufferConfig(
        capacity=CAPACITY,
        sampler=sampler,
        remover="fifo",
        max_times_sampled=USES,
        priority_signal="solve_rate",
        seed=0,
    ).build()
    put_at: dict[int | None, int] = {}
    uses: Counter[int] = Counter()
    staleness: Counter[int] = Counter()

    async def produce(step: int) -> None:
        put_at[await buffer.put(made_group(rng), TASK, model_step=step - 1)] = step

    for step in range(1, STEPS + 1):
        for _ in range(12 + int(9 * rng.random())):
            await produce(step)
        while not await buffer.is_ready({TASK: BATCH}):  # the trainer waits, and producers go on
            await produce(step)
        for sample in await buffer.sample(BATCH, TASK, train_step=step):
            uses[sample.info.uid] += 1
            staleness[sample.info.staleness] += step > STEADY
    settled = [uid for uid, step in put_at.items() if STEADY < step <= SETTLED]
    return Trained(+staleness, Counter(uses[uid] for uid in settled))


# --- windows

WINDOW_STEPS, WINDOW_BATCH = 24, 8
PRODUCERS, ROLL_TICKS, TRAIN_TICKS = 24, 6, 4  # a third more than 8 groups in 4 ticks
WINDOWS = {
    "no window": None,
    "max_staleness=4": StalenessWindow(4, WINDOW_BATCH),
    "max_staleness=2": StalenessWindow(2, WINDOW_BATCH),
    "max_staleness=1": StalenessWindow(1, WINDOW_BATCH),
    "max_staleness=0": StalenessWindow(0, WINDOW_BATCH),
}
INTERVALS = {
    "sync_interval=1": StalenessWindow(4, WINDOW_BATCH),
    "sync_interval=2": StalenessWindow(4, WINDOW_BATCH, sync_interval=2),
    "sync_interval=4": StalenessWindow(4, WINDOW_BATCH, sync_interval=4),
}


class Running(NamedTuple):
    """A group under way."""

    version: int
    ends: int
    reservation: Reservation


class Course(NamedTuple):
    """How a training under a window went."""

    staleness: list[int]
    """The largest of each step."""
    ticks: int


async def train_under(window: StalenessWindow | None) -> Course:
    """Let time pass tick by tick: rolling a group takes 6, a training step takes 4."""
    buffer = SyncReplayBufferConfig(rate_limiter=window).build()
    interval = 1 if window is None else window.sync_interval
    staleness: list[int] = []
    running: list[Running] = []
    tick, step, version = 0, 0, 0  # step: the last that started
    done_at: int | None = None  # when it ends; None: the trainer waits for a batch
    while True:
        for group in [group for group in running if group.ends == tick]:
            rollout = Rollout(response_ids=[1], status=Status.COMPLETED)
            await buffer.put([rollout], TASK, model_step=group.version, reservation=group.reservation)
            running.remove(group)
        if done_at == tick:
            await buffer.advance(step)
            version, done_at = step - step % interval, None
            if step == WINDOW_STEPS:
                return Course(staleness, tick)
        if done_at is None and await buffer.is_ready({TASK: WINDOW_BATCH}):
            step, done_at = step + 1, tick + TRAIN_TICKS
            batches, _ = await buffer.take_batch({TASK: WINDOW_BATCH}, train_step=step)
            staleness.append(max(group[0].seq_staleness for group in batches[TASK]))
        while len(running) < PRODUCERS and (reservation := await reserved(buffer)):
            running.append(Running(version, tick + ROLL_TICKS, reservation))
        tick += 1


async def reserved(buffer: ReplayBuffer) -> Reservation | None:
    try:
        return await buffer.reserve(1, TASK, timeout=0)
    except WaitTimeout:
        return None


# --- drawing

LINES = ("#8c959f", "#7b4fb5", "#3b76c4", "#2a8f6a", "#d9722e")


class Box(NamedTuple):
    """Where a plot is, and what its axes reach: x from `first` to `last`, y from 0 to `top`."""

    left: float
    right: float
    up: float
    down: float
    first: float
    last: float
    top: float

    def x(self, value: float) -> float:
        return self.left + (value - self.first) / (self.last - self.first) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.down - value / self.top * (self.down - self.up)


def level(box: Box, value: float, color: str) -> str:
    """Draw a horizontal line through a plot."""
    ends = f'x1="{number(box.left)}" x2="{number(box.right)}"'
    return f'<line {ends} y1="{number(box.y(value))}" y2="{number(box.y(value))}" stroke="{color}"/>'


def axes(
    box: Box, xs: Iterable[int], ys: Iterable[float], *, unit: str = "", labels: bool = True
) -> list[str]:
    """Draw a grid of horizontal lines, and the numbers of both axes; `labels` says whether those of y are shown."""
    parts = []
    for value in ys:
        parts.append(level(box, value, GRID if value else FAINT))
        if labels:
            parts.append(
                text(box.left - 6, box.y(value) + 3.5, f"{value:g}{unit}", size=10, color=FAINT, at="end")
            )
    parts += [
        text(box.x(value), box.down + 14, str(value), size=10, color=FAINT, at="middle") for value in xs
    ]
    return parts


class Panels(NamedTuple):
    """How a row of histograms is drawn, one for each sampler, all to the same scale."""

    title: str
    axis: str
    last: int
    ticks: Sequence[int]
    top: int
    grid: Sequence[int]


STALENESS = Panels(
    "How stale is what each sampler trains?",
    "staleness, in versions",
    18,
    range(0, 19, 6),
    60,
    (0, 20, 40, 60),
)
USE_COUNTS = Panels(
    "How often does each sampler use a group?",
    "uses of a group, until it leaves",
    USES,
    range(0, 9, 2),
    100,
    (0, 50, 100),
)


def histograms(panels: Panels, counts: dict[str, Counter[int]], what: str, odd: int | None = None) -> str:
    """Draw one histogram for each sampler, in shares; the bar of the value `odd` has another color."""
    columns, wide, high = 4, 196, 166
    parts = [text(20, 30, panels.title, size=15, bold=True), text(20, 48, what, color=FAINT)]
    for place, (name, counted) in enumerate(counts.items()):
        row, column = divmod(place, columns)
        left, up = 52 + column * wide, 98 + row * high
        box = Box(left, left + wide - 28, up, up + 100, -0.6, panels.last + 0.6, panels.top)
        total = counted.total()
        mean = sum(value * count for value, count in counted.items()) / total
        parts += axes(box, panels.ticks, panels.grid, unit="%", labels=column == 0)
        parts.append(text(box.left, box.up - 18, name, size=12, bold=True))
        parts.append(text(box.left, box.up - 5, said(mean, counted, odd), size=10, color=FAINT))
        thick = 0.8 * (box.x(1) - box.x(0))
        for value, count in sorted(counted.items()):
            tall = box.down - box.y(min(100 * count / total, panels.top))
            parts.append(
                f'<rect x="{number(box.x(value) - thick / 2)}" y="{number(box.down - tall)}" width="{number(thick)}" '
                f'height="{number(tall)}" fill="{ORANGE if value == odd else BLUE}"/>'
            )
    bottom = 98 + high + 100 + 34
    parts.append(text(52, bottom, f"across: {panels.axis}; up: share", size=10, color=FAINT))
    return picture(52 + columns * wide - 8, bottom + 16, panels.title, parts)


def said(mean: float, counted: Counter[int], odd: int | None) -> str:
    words = f"mean {mean:.1f}"
    if odd is None:
        return f"{words}, largest {max(counted)}"
    return f"{words}, never used: {100 * counted[odd] / counted.total():.0f}%"


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Return where labels go that want to stand at these heights, the lowest on the page first, `gap` apart."""
    placed: list[float] = []
    for height in sorted(wanted, reverse=True):
        placed.append(min(height, placed[-1] - gap) if placed else height)
    return placed


def course_lines(box: Box, colors: Sequence[str], given: dict[str, Course], usual: int) -> list[str]:
    """Draw a line for each course, with its name at its end."""
    parts, ends = [], []
    for color, (name, course) in zip(colors, given.items(), strict=True):
        points = " ".join(
            f"{number(box.x(step))},{number(box.y(value))}"
            for step, value in enumerate(course.staleness, start=1)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        ends.append((box.y(course.staleness[-1]) + 4, f"{name}, time {course.ticks / usual:.2f}", color))
    ends.sort(key=lambda end: end[0], reverse=True)
    heights = spread([height for height, _, _ in ends], 13)
    for height, (_, words, color) in zip(heights, ends, strict=True):
        parts.append(text(box.right + 8, height, words, color=color))
    return parts


def courses(left: dict[str, Course], right: dict[str, Course]) -> str:
    title = "How stale does training become under a window?"
    said = (
        "Largest staleness of each step. Producers could make a third more than the trainer uses. "
        f"Time: of {WINDOW_STEPS} steps, without a window 1."
    )
    usual = left["no window"].ticks
    parts = [text(20, 30, title, size=15, bold=True), text(20, 48, said, color=FAINT)]
    panels = (
        (Box(52, 252, 100, 280, 1, WINDOW_STEPS, 14), "new weights every step", LINES, left),
        (
            Box(460, 660, 100, 280, 1, WINDOW_STEPS, 6),
            "max_staleness=4, new weights less often",
            LINES[1:4],
            right,
        ),
    )
    for box, heading, colors, given in panels:
        parts += axes(box, (1, 6, 12, 18, 24), range(0, int(box.top) + 1, 2))
        parts.append(text(box.left, box.up - 14, heading, size=12, bold=True))
        parts.append(
            text(box.left, box.down + 32, "across: training step; up: staleness", size=10, color=FAINT)
        )
        parts += course_lines(box, colors, given, usual)
    return picture(828, 328, title, parts)


async def pictures() -> dict[str, str]:
    """Return the pictures by file name."""
    trained = {name: await train(sampler) for name, sampler in SAMPLERS.items()}
    said = f"{BATCH} samples and 16 new groups a step; {CAPACITY} groups fit, the oldest is evicted; at most {USES} uses"
    return {
        "samplers_staleness.svg": histograms(
            STALENESS, {name: t.staleness for name, t in trained.items()}, said
        ),
        "samplers_uses.svg": histograms(
            USE_COUNTS, {name: t.uses for name, t in trained.items()}, said, odd=0
        ),
        "staleness_window.svg": courses(
            {name: await train_under(window) for name, window in WINDOWS.items()},
            {name: await train_under(window) for name, window in INTERVALS.items()},
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the pictures of docs/replay.md.")
    parser.add_argument(
        "--to", type=Path, default=FOLDER, help="the folder to write to; default: docs/pictures"
    )
    folder = parser.parse_args().to
    folder.mkdir(parents=True, exist_ok=True)
    for name, drawn in asyncio.run(pictures()).items():
        (folder / name).write_text(drawn, encoding="utf-8", newline="\n")
        print(f"{name}: {len(drawn)} characters")


if __name__ == "__main__":
    main()
