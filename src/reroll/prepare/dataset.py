"""`PreparedDataset`: the steps of one rank as a torch data set. The only module of the package that needs torch."""

from collections.abc import Callable, Iterator

from reroll.errors import InvalidArgument, SourceEnded, missing_extra
from reroll.prepare.step_data import StepData

try:
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError as error:
    raise missing_extra("PreparedDataset", "torch", "torch") from error

GetData = Callable[[int, int, float | None], StepData]


class PreparedDataset(IterableDataset):  # type: ignore[misc, unused-ignore]  # (untyped where torch is not installed)
    """Yields the StepData of one rank, step after step, until `last_step` or the end of the source.

    Use it with `DataLoader(dataset, batch_size=None)`: each item is a batch already. Iterating again continues with
    `next_step`.

    Args:
        get_data: `BlockingPreparer.get_data`, or a function that calls it in another process.
        rank: The rank.
        first_step: The first step to read.
        last_step: The last step to read; None: until the source ends.
        timeout: Seconds to wait for each step.

    """

    def __init__(
        self,
        get_data: GetData,
        rank: int,
        *,
        first_step: int = 1,
        last_step: int | None = None,
        timeout: float | None = 600.0,
    ) -> None:
        super().__init__()
        self._get_data = get_data
        self._rank = rank
        self._last_step = last_step
        self._timeout = timeout
        self.next_step = first_step
        """The step that is read next."""

    def __iter__(self) -> Iterator[StepData]:
        """Yield step after step. Raises the errors of `get_data`, and InvalidArgument in one of several workers."""
        worker = get_worker_info()
        if worker is not None and worker.num_workers > 1:
            raise InvalidArgument(
                f"{worker.num_workers} workers would each train every step of rank {self._rank}; use num_workers=0 or 1"
            )
        while self._last_step is None or self.next_step <= self._last_step:
            try:
                data = self._get_data(self._rank, self.next_step, self._timeout)
            except SourceEnded:
                return
            self.next_step += 1
            yield data
