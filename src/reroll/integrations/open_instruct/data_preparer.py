"""DataPreparer: in place of the data preparation actor, over `reroll.prepare.BlockingPreparer`."""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from os import PathLike
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from reroll.errors import InvalidArgument
from reroll.integrations.open_instruct.results import to_generation_result
from reroll.prepare import (
    BlockingPreparer,
    GenerationResult,
    PackedBatch,
    PrepareConfig,
    Prompts,
    StepData,
    pad,
)
from reroll.prepare.batches import to_tensors
from reroll.prepare.sources import is_end


@dataclass
class CollatedBatch:
    """The micro-batches of a rank as lists, one entry for each; rows are padded to the longest of their micro-batch.

    The numbers of a token stand at the token itself.
    """

    query_responses: list[Any]
    attention_masks: list[Any]
    """The number of a token's sequence in its micro-batch, from 1; 0 in padding."""
    position_ids: list[Any]
    advantages: list[Any]
    response_masks: list[Any]
    """Whether a token is trained on."""
    vllm_logprobs: list[Any]
    """0 where there is none."""

    def __len__(self) -> int:
        return len(self.query_responses)

    def __getitem__(self, index: int | slice) -> Self:
        return type(self)(**{column.name: getattr(self, column.name)[index] for column in fields(self)})


class DataPreparer:
    """Prepares step after step for all ranks, from results that come from a queue. Thread-safe; starts with the first call.

    `preparer` is what does it: `preparer.buffer`, `preparer.done`.
    """

    def __init__(
        self,
        config: PrepareConfig,
        source: Any = None,
        *,
        buffer: Any = None,
        prompts: Prompts | None = None,
        sentinel: Any = None,
        save_to: str | PathLike[str] | None = None,
        tensors: bool = True,
    ) -> None:
        """Make a preparer.

        Args:
            config: what it does; steps count from 0 with `first_step=0`.
            source: a queue with `get`, or an iterable, of ProcessedResults or `reroll.prepare.GenerationResult`s.
            buffer: a buffer that belongs to somebody else; None: one of its own, as configured.
            prompts: who has the prompt cursor, see `reroll.prepare.Prompts`.
            sentinel: what the source gives when nothing will come any more.
            save_to: the directory in which `get_state` saves a buffer in memory, each time into a new one.
            tensors: whether batches hold tensors of torch, or arrays of numpy.

        """
        self.config = config
        self.preparer = BlockingPreparer(
            config, _converted(source, sentinel), buffer=buffer, prompts=prompts, sentinel=sentinel
        )
        self._save_to = save_to
        self._tensors = tensors
        self._asked = [config.first_step - 1] * config.num_ranks
        self._starting = threading.Lock()
        self._is_started = False

    def get_data(self, rank: int, step: int, timeout: float | None = None) -> dict[str, Any]:
        """Return what a rank trains in a step: its `batch`, the `metrics` of the step, and both as `data`.

        Waits until it is prepared. Raises what `BlockingPreparer.get_data` raises, ImportError without torch.
        """
        self._start()
        data = self.preparer.get_data(rank, step, timeout)
        self._asked[rank] = max(self._asked[rank], step)
        return {"batch": self._collated(data), "metrics": dict(data.metrics), "data": data}

    def get_state(
        self, step: int | None = None, *, save_to: str | PathLike[str] | None = None
    ) -> dict[str, Any]:
        """Return what a restart needs, as plain values, for the trainer's checkpoint.

        `step` is the last that was trained; without it, the last that every rank has asked for: a trainer asks at the
        beginning of a step and saves at its end. A buffer in memory is saved into a new directory inside of `save_to`, here
        or as given to the preparer. Raises InvalidArgument if groups in memory would be lost.
        """
        done = min(self._asked) if step is None else step
        return self.preparer.state(step=done, save_to=self._save_to if save_to is None else save_to)

    def set_state(self, state: Mapping[str, Any], *, saved: str | PathLike[str] | None = None) -> None:
        """Go on after the step of a state, before the first `get_data`; `saved` is where its buffer was moved to.

        Raises what `BlockingPreparer.restore` raises.
        """
        self.preparer.restore(state, saved=saved)
        self._asked = [state["step"]] * self.config.num_ranks

    def commit(self, step: int) -> int:
        """Tell that the trainer's own checkpoint of this step is on disk, with its state; see `ReplayBuffer.commit`."""
        return self.preparer.commit(step)

    def shutdown(self) -> list[GenerationResult]:
        """Stop; whoever waits gets Closed. Returns the results that were taken from the source and are not in the buffer."""
        return self.preparer.shutdown()

    def _start(self) -> None:
        with self._starting:
            if not self._is_started:
                self.preparer.start()
                self._is_started = True

    def _collated(self, data: StepData) -> CollatedBatch:
        parts = [self._columns(micro_batch) for micro_batch in data]
        return CollatedBatch(
            **{column.name: [part[column.name] for part in parts] for column in fields(CollatedBatch)}
        )

    def _columns(self, micro_batch: PackedBatch) -> dict[str, Any]:
        padded = pad(micro_batch, pad_token_id=self.config.pad_token_id)
        arrays: dict[str, npt.NDArray[Any]] = {
            "query_responses": padded.input_ids.astype(np.int64),
            "attention_masks": padded.document_ids.astype(np.int64) + 1,
            "position_ids": padded.position_ids.astype(np.int64),
            "advantages": padded.advantages,
            "response_masks": padded.response_mask,
            "vllm_logprobs": padded.logprobs,
        }
        return to_tensors(arrays) if self._tensors else arrays


class _Converted:
    """A queue whose results are those that `reroll.prepare` takes."""

    def __init__(self, source: Any, convert: Callable[[Any], Any]) -> None:
        self._source = source
        self._convert = convert

    def get(self, timeout: float | None = None) -> Any:
        return self._convert(self._source.get(timeout=timeout))


def _converted(source: Any, sentinel: Any) -> Any:
    """Return a source of the same shape. Raises InvalidArgument for what is neither a queue nor an iterable."""

    def convert(item: Any) -> Any:
        return item if is_end(item, sentinel) else to_generation_result(item)

    if source is None:
        return None
    if callable(getattr(source, "get", None)):
        return _Converted(source, convert)
    if isinstance(source, Iterable):
        return map(convert, source)
    raise InvalidArgument(f"a source is a queue with get(timeout=...), or an iterable, not {source!r}")
