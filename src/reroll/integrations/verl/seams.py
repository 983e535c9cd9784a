"""Every private name of verl that the sampler overrides, calls or wraps. A test fails when verl changes one of them."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

BUFFER_NAMES: Final = (
    *("_sync_metadata_from_transfer_queue", "_has_enough_samples", "_clear_groups", "_wait_for_next_poll"),
    *("wait_for_sampleable", "get_sampleable_count", "sample"),
)
"""Methods of `ReplayBufferAsync`."""
BUFFER_FIELDS: Final = (
    *("partitions", "pending_keys", "running_keys", "prompt_global_steps", "refill_fn"),
    "filter_groups_metric",
)
TRAINER_NAMES: Final = ("_save_checkpoint", "_load_checkpoint", "_add_batch_to_generate", "fit")
"""Methods of `PPOTrainer`, which the sampler finds behind `refill_fn`."""
FOLDER: Final = "replay_buffer"
"""Where a checkpoint of verl has the sampler's state."""


class Trainer:
    """The trainer that owns a sampler: its checkpoints, and the prompts that it submits.

    Args:
        refill_fn: verl's function that submits prompts. Where it is no method of a trainer, nothing is wrapped.
        save, load: called with the sampler's folder of a checkpoint before verl writes it, and after verl has read it.
        withhold: called with the number of prompts that verl is about to submit for a step; returns how many are not needed.
        end: called after the last step.

    """

    def __init__(
        self,
        refill_fn: Callable[[int], Any] | None,
        save: Callable[[Path], None],
        load: Callable[[Path], None],
        withhold: Callable[[int], int],
        end: Callable[[], None],
    ) -> None:
        self._refill = refill_fn
        owner: Any = getattr(refill_fn, "__self__", None)
        self._data: Mapping[str, Any] = {}
        if not hasattr(owner, "_save_checkpoint"):
            return
        self._data = owner.config.data
        owner._save_checkpoint = partial(self._save, owner, owner._save_checkpoint, save)
        owner._load_checkpoint = partial(self._load, owner, owner._load_checkpoint, load)
        owner._add_batch_to_generate = partial(self._submit, owner._add_batch_to_generate, withhold)
        owner.fit = partial(self._fit, owner.fit, end)

    def refill(self, prompts: int) -> int:
        """Submit at least this many prompts, in whole fetches of verl's dataloader, and return how many were."""
        prompts += -prompts % self._fetch
        if prompts and self._refill is not None:
            self._refill(prompts)
        return prompts

    @property
    def _fetch(self) -> int:
        return int(self._data.get("gen_batch_size") or self._data.get("train_batch_size") or 1)

    def _submit(self, submit: Callable[[], Any], withhold: Callable[[int], int]) -> None:
        wanted = int(self._data["train_batch_size"])
        withheld = withhold(wanted) // self._fetch * self._fetch
        if withheld <= 0:
            submit()
        elif withheld < wanted:
            self.refill(wanted - withheld)

    @staticmethod
    def _fit(fit: Callable[..., Any], end: Callable[[], None], *args: Any, **options: Any) -> Any:
        result = fit(*args, **options)
        end()
        return result

    @staticmethod
    def _save(owner: Any, save_checkpoint: Callable[[], Any], save: Callable[[Path], None]) -> None:
        folder = Path(owner.config.trainer.default_local_dir) / f"global_step_{owner.global_steps}"
        save(folder / FOLDER)
        save_checkpoint()

    @staticmethod
    def _load(owner: Any, load_checkpoint: Callable[[], Any], load: Callable[[Path], None]) -> None:
        load_checkpoint()
        config = owner.config.trainer
        if owner.global_steps:
            named = config.resume_from_path if config.resume_mode == "resume_path" else None
            load(Path(named or Path(config.default_local_dir) / f"global_step_{owner.global_steps}") / FOLDER)
