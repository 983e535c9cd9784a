"""Models of inference engines: sequences share the speed of an engine, which depends on how many of them run."""

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Callable
from itertools import count
from operator import attrgetter
from typing import Any, Final, NamedTuple

from reroll.simulate.scenario import EngineModel

_LOAD: Final = attrgetter("load")


class Run(NamedTuple):
    """A run of a sequence on an engine, or the state of the engine when it began."""

    tokens: int
    seconds: float
    running: float
    """Sequences that ran at the same time, on average; while the run goes on, their sum over the seconds."""


class Sequence:
    """One response while it is generated: `tokens` of its `target` are there."""

    __slots__ = ("engine", "finish", "run", "target", "tokens")

    def __init__(self, target: int, tokens: int = 0) -> None:
        self.target, self.tokens = target, tokens
        self.finish = math.inf
        """The progress of the engine at which this sequence has its target."""
        self.run = Run(0, 0.0, 0.0)
        """The last run on an engine: while it goes on, what it started with."""
        self.engine: Engine | None = None
        """Where it runs or waits; None: a tool or the judge has it."""

    def now(self) -> int:
        """Return the whole tokens that are there by now."""
        return self.tokens if self.engine is None else self.engine.tokens_of(self)


class Engine:
    """An engine: each of n running sequences gets `tokens_per_s / (1 + n / half_speed_at)` tokens a second."""

    def __init__(
        self, model: EngineModel, loop: asyncio.AbstractEventLoop, on_end: Callable[[Any], object]
    ) -> None:
        self._model, self._loop, self._on_end = model, loop, on_end
        self._running: list[tuple[float, int, Sequence]] = []  # a heap by the progress at which each ends
        self._queued: deque[Sequence] = deque()
        self._numbers = count()
        self._progress = 0.0  # tokens that a sequence would have got that ran from the beginning
        self._prefill_s = 0.0  # seconds of prefill that are still to be done; nothing is decoded meanwhile
        self._moved_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._stops = 0  # reasons to stand still: a weight sync, a crash, training on the same GPUs
        self.load = 0
        """The number of sequences that run or wait here."""
        self.is_down = False
        """Whether it has crashed, and takes nothing new."""
        self.busy_s = 0.0
        """Seconds with at least one running sequence, up to the last event."""
        self.work = 0.0
        """Tokens of decoding that were done, up to the last event."""
        self._load_s = 0.0

    def submit(self, sequence: Sequence, context_tokens: int) -> None:
        """Generate the rest of a sequence, after `context_tokens` of prefill. O(log of the running ones)."""
        self.move()
        self.load += 1
        sequence.engine, sequence.finish = self, math.inf
        if self._model.prefill_tokens_per_s is not None:
            self._prefill_s += context_tokens / self._model.prefill_tokens_per_s
        if len(self._running) >= self._model.max_running:
            self._queued.append(sequence)
            return
        self._start(sequence)
        # One more sequence slows the others down: a timer that is set fires too early, and then plans anew.
        if self._timer is None or self._running[0][2] is sequence:
            self._plan()

    def stop(self) -> None:
        """Let nothing run until `go` was called as often as this."""
        self.move()
        self._stops += 1
        self._plan()

    def go(self) -> None:
        """Undo one `stop`."""
        self.move()
        self._stops -= 1
        self._plan()

    def abort(self) -> list[Sequence]:
        """Take all sequences away, each with the tokens that it has by now, and return them."""
        self.move()
        taken = [*(sequence for _, _, sequence in self._running), *self._queued]
        for sequence in taken:
            sequence.tokens, sequence.engine = self.tokens_of(sequence), None
        self._running.clear()
        self._queued.clear()
        self.load = 0
        self._plan()
        return taken

    def cancel(self, sequence: Sequence) -> None:
        """Take a sequence away, with the tokens that it has by now. O(running sequences)."""
        self.move()
        sequence.tokens, sequence.engine = self.tokens_of(sequence), None
        if sequence in self._queued:
            self._queued.remove(sequence)
        else:
            self._running = [entry for entry in self._running if entry[2] is not sequence]
            heapq.heapify(self._running)
        self.load -= 1
        self._fill()
        self._plan()

    def tokens_of(self, sequence: Sequence) -> int:
        """Return the whole tokens that a sequence of this engine has by now."""
        self.move()
        left = max(0.0, sequence.finish - self._progress)
        return max(sequence.tokens, sequence.target - math.ceil(min(left, sequence.target) - 1e-6))

    def most(self) -> float:
        """Return the tokens a second with all places taken."""
        return self._rate(self._model.max_running) * self._model.max_running

    def _rate(self, running: int) -> float:
        return self._model.tokens_per_s / (1 + running / self._model.half_speed_at)

    def _start(self, sequence: Sequence) -> None:
        sequence.run = Run(sequence.tokens, self._loop.time(), self._load_s)
        sequence.finish = self._progress + sequence.target - sequence.tokens
        heapq.heappush(self._running, (sequence.finish, next(self._numbers), sequence))

    def _fill(self) -> None:
        while self._queued and len(self._running) < self._model.max_running:
            self._start(self._queued.popleft())

    def move(self) -> None:
        """Bring the progress up to now."""
        now, running = self._loop.time(), len(self._running)
        if running and not self._stops and now > self._moved_at:
            seconds = now - self._moved_at
            prefill_s = min(seconds, self._prefill_s)
            self._prefill_s -= prefill_s
            gained = (seconds - prefill_s) * self._rate(running)
            self._progress += gained
            self.work += gained * running
            self.busy_s += seconds
            self._load_s += seconds * running
        self._moved_at = now

    def _plan(self) -> None:
        """Set the timer for the next sequence that ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._running and not self._stops:
            left = max(0.0, self._running[0][0] - self._progress)
            decode_s = left / self._rate(len(self._running))
            self._timer = self._loop.call_later(self._prefill_s + decode_s, self._end)

    def _end(self) -> None:
        self._timer = None
        self.move()
        ended, now = [], self._loop.time()
        while self._running and self._running[0][0] <= self._progress + 1e-6:
            _, _, sequence = heapq.heappop(self._running)
            sequence.tokens, sequence.engine = sequence.target, None
            first, seconds = sequence.run, max(now - sequence.run.seconds, 1e-9)
            running = (self._load_s - first.running) / seconds
            sequence.run = Run(sequence.target - first.tokens, seconds, running)
            ended.append(sequence)
        self.load -= len(ended)
        self._fill()
        self._plan()
        for sequence in ended:
            self._on_end(sequence)


class Fleet:
    """All engines; a sequence goes to the one with the fewest."""

    def __init__(
        self, model: EngineModel, loop: asyncio.AbstractEventLoop, on_end: Callable[[Any], object]
    ) -> None:
        self.engines = [Engine(model, loop, on_end) for _ in range(model.count)]

    def submit(self, sequence: Sequence, context_tokens: int) -> None:
        """Generate the rest of a sequence. O(number of engines)."""
        up = [engine for engine in self.engines if not engine.is_down]
        min(up or self.engines, key=_LOAD).submit(sequence, context_tokens)

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
        return sum(map(_LOAD, self.engines))
