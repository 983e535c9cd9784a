"""The modes: five configurations of one buffer and one trainer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from reroll import Mixture, Prioritized, StalenessWindow, SyncReplayBufferConfig, Uniform
from reroll.prepare import PrepareConfig

TASK: Final = "sort"
GROUP_SIZE: Final = 8
BATCH: Final = 16
FRESH: Final = 4
MAX_STALENESS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """How groups reach the trainer."""

    name: str
    about: str
    batch: int = BATCH
    """Groups of a training step."""
    fresh: int = BATCH
    """Groups that are generated for it."""
    is_ahead: bool = False
    """Whether the producer generates while the trainer trains."""
    prepare: Mapping[str, Any] = field(default_factory=dict)
    buffer: Mapping[str, Any] = field(default_factory=dict)

    def config(self, seed: int, store: Path | None = None) -> PrepareConfig:
        """Return the configuration of the preparer and its buffer, which is durable with a store."""
        return PrepareConfig(
            task=TASK,
            global_batch_size=self.batch,
            group_size=GROUP_SIZE,
            pack_length=64,
            rows_per_micro_batch=64,  # all rows in one: the model is small
            filter_zero_std=True,
            keep_filtered=True,  # so that the ledger shows them
            **{"async_steps": 0, **self.prepare},
            replay_buffer=SyncReplayBufferConfig(seed=seed, store=store, **self.buffer),
        )


_REPLAY: Final = {"max_staleness": 8, "on_stale": "drop", "max_times_sampled": 8}

MODES: Final = {
    mode.name: mode
    for mode in (
        Mode(
            name="on-policy",
            about=f"{BATCH} new groups a step, each trained once, by the weights that follow",
        ),
        Mode(
            name="on-policy-small",
            about=f"{FRESH} new groups a step, each trained once: the fresh share of replay, and nothing else",
            batch=FRESH,
            fresh=FRESH,
        ),
        Mode(
            name="async",
            about=f"the producer generates while the trainer trains, at most {MAX_STALENESS} steps ahead; new weights "
            "abort the running responses, and continue them",
            is_ahead=True,
            prepare={"max_staleness": MAX_STALENESS},
            buffer={"sampler": "stalest", "rate_limiter": StalenessWindow(MAX_STALENESS, batch=BATCH)},
        ),
        Mode(
            name="replay-uniform",
            about=f"{FRESH} new groups a step and {BATCH - FRESH} that were trained before, drawn uniformly",
            fresh=FRESH,
            buffer={"sampler": Mixture(FRESH / BATCH, replay=Uniform()), **_REPLAY},
        ),
        Mode(
            name="replay-prioritized",
            about=f"{FRESH} new groups a step and {BATCH - FRESH} trained ones, drawn by p(1-p) and age, with importance "
            "weights",
            fresh=FRESH,
            prepare={"importance_weights": True},
            buffer={
                "sampler": Mixture(FRESH / BATCH, replay=Prioritized(half_life=4)),
                "priority_signal": "solve_rate",
                **_REPLAY,
            },
        ),
    )
}
