"""Models of inference engines: sequences share the speed of an engine, which depends on how many of them run."""

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from reroll.simulate.scenario import EngineModel


class Run(NamedTuple):
    """A run of a sequence on an engine, or the state of the engine when it began."""

    tokens: int
    seconds: float
    running: float
    """Sequences that ran at the same time, on average; while the run goes on, their sum over the seconds."""


class Sequence:
    """One response while it is generated: `tokens` of its `target` are there."""

    __slots__ = ("engine", "finish", "on_end", "prefill", "run", "target", "tokens")

    def __init__(self, on_end: "Callable[[Sequence], None]", *, target: int, tokens: int) -> None:
        self.target, self.tokens, self.on_end = target, tokens, on_end
        self.prefill = 0.0
        """Work before the first token of this run, in tokens of decoding."""
        self.finish = math.inf
        """The progress of the engine at which this sequence has its target."""
        self.run = Run(0, 0.0, 0.0)
        """The last run on an engine: while it goes on, what it started with."""
        self.engine: Engine | None = None
        """Where it runs or waits; None: a tool or the judge has it."""

    def now(self) -> int:
        """Return the whole tokens that are there by now."""
        return self.tokens if self.engine is None else self.engine.tokens_of(self)


class Speed(NamedTuple):
    """What an engine did, in seconds and tokens."""

    busy_s: float
    full_s: float
    """Seconds at full throughput that would have given the same tokens."""
    prefill_tokens: float


class Engine:
    """An engine: each of n running sequences gets `tokens_per_s / (1 + n / half_speed_at)` tokens a second."""

    def __init__(self, model: EngineModel, loop: asyncio.AbstractEventLoop) -> None:
        self._model = model
        self._loop = loop
        self._running: list[tuple[float, int, Sequence]] = []  # a heap by the progress at which each ends
        self._queued: deque[Sequence] = deque()
        self._numbers = count()
        self._progress = 0.0  # tokens that a sequence would have got that ran from the beginning
        self._moved_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._stops = (
            0  # reasons why nothing runs now: weights that are copied, a crash, training on the same GPUs
        )
        self.is_down = False
        """Whether it has crashed, and takes nothing new."""
        self._work = self._busy_s = self._load_s = self._prefill = 0.0

    @property
    def load(self) -> int:
        """The number of sequences that run or wait here."""
        return len(self._running) + len(self._queued)

    def submit(self, sequence: Sequence, context_tokens: int) -> None:
        """Generate the rest of a sequence, after `context_tokens` of prefill. O(log of the running ones)."""
        self._move()
        sequence.engine, sequence.finish = self, math.inf
        speed = self._model.prefill_tokens_per_s
        sequence.prefill = 0.0 if speed is None else context_tokens * self._model.tokens_per_s / speed
        if speed is not None:
            self._prefill += context_tokens
        if len(self._running) < self._model.max_running:
            self._start(sequence)
            self._plan()
        else:
            self._queued.append(sequence)

    def stop(self) -> None:
        """Let nothing run until `go` was called as often as this."""
        self._move()
        self._stops += 1
        self._plan()

    def go(self) -> None:
        """Undo one `stop`."""
        self._move()
        self._stops -= 1
        self._plan()

    def abort(self) -> list[Sequence]:
        """Take all sequences away, each with the tokens that it has by now, and return them."""
        self._move()
        taken = [sequence for _, _, sequence in self._running]
        for sequence in taken:
            sequence.tokens = self.tokens_of(sequence)
        taken += self._queued
        self._running.clear()
        self._queued.clear()
        self._plan()
        for sequence in taken:
            sequence.engine = None
        return taken

    def cancel(self, sequence: Sequence) -> None:
        """Take a sequence away, with the tokens that it has by now. O(running sequences)."""
        self._move()
        if sequence in self._queued:
            self._queued.remove(sequence)
        else:
            sequence.tokens = self.tokens_of(sequence)
            self._running = [entry for entry in self._running if entry[2] is not sequence]
            heapq.heapify(self._running)
        sequence.engine = None
        self._fill()
        self._plan()

    def tokens_of(self, sequence: Sequence) -> int:
        """Return the whole tokens that a sequence of this engine has by now."""
        self._move()
        left = max(0.0, sequence.finish - self._progress)
        return max(sequence.tokens, sequence.target - math.ceil(min(left, sequence.target) - 1e-6))

    def speed(self) -> Speed:
        """Return what this engine has done so far."""
        self._move()
        return Speed(self._busy_s, self._work / self._most(), self._prefill)

    def _most(self) -> float:
        """Return the tokens a second with all places taken."""
        return self._rate(self._model.max_running) * self._model.max_running

    def _rate(self, running: int) -> float:
        return self._model.tokens_per_s / (1 + running / self._model.half_speed_at)

    def _start(self, sequence: Sequence) -> None:
        sequence.run = Run(sequence.tokens, self._loop.time(), self._load_s)
        sequence.finish = self._progress + sequence.prefill + sequence.target - sequence.tokens
        heapq.heappush(self._running, (sequence.finish, next(self._numbers), sequence))

    def _fill(self) -> None:
        while self._queued and len(self._running) < self._model.max_running:
            self._start(self._queued.popleft())

    def _move(self) -> None:
        """Bring the progress up to now."""
        now = self._loop.time()
        if self._running and not self._stops:
            seconds = now - self._moved_at
            gained = seconds * self._rate(len(self._running))
            self._progress += gained
            self._work += gained * len(self._running)
            self._busy_s += seconds
            self._load_s += seconds * len(self._running)
        self._moved_at = now

    def _plan(self) -> None:
        """Set the timer for the next sequence that ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._running and not self._stops:
            left = max(0.0, self._running[0][0] - self._progress)
            self._timer = self._loop.call_later(left / self._rate(len(self._running)), self._end)

    def _end(self) -> None:
        self._timer = None
        self._move()
        ended = []
        while self._running and self._running[0][0] <= self._progress + 1e-6:
            _, _, sequence = heapq.heappop(self._running)
            sequence.tokens = sequence.target
            sequence.engine = None
            first, seconds = sequence.run, max(self._loop.time() - sequence.run.seconds, 1e-9)
            running = (self._load_s - first.running) / seconds
            sequence.run = Run(sequence.target - first.tokens, seconds, running)
            ended.append(sequence)
        self._fill()
        self._plan()
        for sequence in ended:
            sequence.on_end(sequence)


class Fleet:
    """All engines; a sequence goes to the one with the fewest."""

    def __init__(self, model: EngineModel, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.engines = [Engine(model, loop) for _ in range(model.count)]

    @property
    def now(self) -> float:
        """The time, in seconds."""
        return self._loop.time()

    def submit(self, sequence: Sequence, context_tokens: int) -> None:
        """Generate the rest of a sequence. O(number of engines)."""
        min(self.engines, key=lambda engine: (engine.is_down, engine.load)).submit(sequence, context_tokens)

    def stop(self) -> None:
        """Stop all engines."""
        for engine in self.engines:
            engine.stop()

    def go(self) -> None:
        """Let all engines go on."""
        for engine in self.engines:
            engine.go()

    @property
    def load(self) -> int:
        """The number of sequences that run or wait."""
        return sum(engine.load for engine in self.engines)
