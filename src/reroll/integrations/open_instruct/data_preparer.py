"""`DataPreparer`: open-instruct's data preparation over `reroll.prepare.BlockingPreparer`."""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from os import PathLike
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from reroll.errors import InvalidArgument, shown
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
    """The micro-batches of a rank as lists, one entry each; rows are padded to the longest of their micro-batch.

    Per-token values are aligned with the token itself, not with its successor.
    """

    query_responses: list[Any]
    attention_masks: list[Any]
    """Number of the token's sequence in its micro-batch, from 1; 0 for padding."""
    position_ids: list[Any]
    advantages: list[Any]
    response_masks: list[Any]
    """Whether the token is trained on."""
    vllm_logprobs: list[Any]
    """0 for a token without one."""

    def __len__(self) -> int:
        return len(self.query_responses)

    def __getitem__(self, index: int | slice) -> Self:
        return type(self)(**{column.name: getattr(self, column.name)[index] for column in fields(self)})


class DataPreparer:
    """Prepares training steps for all ranks from a queue of results. Thread-safe; the first call starts it.

    `preparer` is the `BlockingPreparer`, with `preparer.buffer` and `preparer.done`.
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
            config: how steps are prepared; `first_step=0` counts steps from 0.
            source: a queue with `get`, or an iterable, of ProcessedResults, Groups or `reroll.prepare.GenerationResult`s.
            buffer: a buffer that the caller owns; None: one of its own, as configured.
            prompts: callbacks to the owner of the prompt cursor, see `reroll.prepare.Prompts`.
            sentinel: the item that ends the source.
            save_to: the directory in which `get_state` saves a buffer in memory, each time into a new subdirectory.
            tensors: whether batches hold tensors of torch, or arrays of numpy.

        Raises:
            InvalidArgument: the source is neither a queue nor an iterable.

        """
        self.config = config
        self.preparer = BlockingPreparer(
            config, _converted(source, sentinel), buffer=buffer, prompts=prompts, sentinel=sentinel
        )
        self._save_to = save_to
        self._tensors = tensors
        self._requested = [config.first_step - 1] * config.num_ranks
        self._starting = threading.Lock()
        self._is_started = False

    def get_data(self, rank: int, step: int, timeout: float | None = None) -> dict[str, Any]:
        """Wait until a step is prepared, and return the part of a rank.

        Args:
            rank: the data-parallel rank.
            step: the training step.
            timeout: seconds to wait at most.

        Returns:
            The rank's `batch`, the `metrics` of the step, and the `StepData` as `data`.

        Raises:
            ImportError: `tensors` is set and torch is not installed. Other errors as of `BlockingPreparer.get_data`.

        """
        with self._starting:
            if not self._is_started:
                self.preparer.start()
                self._is_started = True
        data = self.preparer.get_data(rank, step, timeout)
        self._requested[rank] = max(self._requested[rank], step)
        return {"batch": self._collated(data), "metrics": dict(data.metrics), "data": data}

    def get_state(
        self, step: int | None = None, *, save_to: str | PathLike[str] | None = None
    ) -> dict[str, Any]:
        """Return the state that a restart needs, as plain values, for the trainer's checkpoint.

        Args:
            step: the last trained step; None: the last step that every rank has requested. A trainer requests a step at its
                beginning and saves at its end.
            save_to: the directory in which a buffer in memory is saved; None: that of the constructor.

        Raises:
            InvalidArgument: groups in memory would be lost, because no directory is known.

        """
        done = min(self._requested) if step is None else step
        return self.preparer.state(step=done, save_to=self._save_to if save_to is None else save_to)

    def set_state(self, state: Mapping[str, Any], *, saved: str | PathLike[str] | None = None) -> None:
        """Continue after the step of a state; call it before the first `get_data`.

        Args:
            state: a state of `get_state`.
            saved: the directory that its buffer was moved to.

        Raises:
            InvalidArgument: the state is invalid. Other errors as of `BlockingPreparer.restore`.

        """
        self.preparer.restore(state, saved=saved)
        self._requested = [state["step"]] * self.config.num_ranks

    def commit(self, step: int) -> int:
        """Record that the trainer's checkpoint of a step is on disk.

        Args:
            step: the step of the checkpoint.

        Returns:
            The number of groups that are now consumed for good; see `ReplayBuffer.commit`.

        """
        return self.preparer.commit(step)

    def shutdown(self) -> list[GenerationResult]:
        """Stop; waiting calls raise Closed.

        Returns:
            Results that were read from the source and are not in the buffer.

        """
        return self.preparer.shutdown()

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


@dataclass
class _ConvertedQueue:
    """A queue whose results are converted when they are read."""

    source: Any
    sentinel: Any

    def get(self, timeout: float | None = None) -> Any:
        return _convert(self.source.get(timeout=timeout), self.sentinel)


def _convert(item: Any, sentinel: Any) -> Any:
    return item if is_end(item, sentinel) else to_generation_result(item)


def _converted(source: Any, sentinel: Any) -> Any:
    """Return a source of the same kind whose results are converted. Raises InvalidArgument."""
    if source is None:
        return None
    if callable(getattr(source, "get", None)):
        return _ConvertedQueue(source, sentinel)
    if isinstance(source, Iterable):
        return (_convert(item, sentinel) for item in source)
    raise InvalidArgument(f"a source is a queue with get(timeout=...), or an iterable, not {shown(source)}")
