"""PreparedDataset: the steps of one rank as a data set of torch. The only module here that needs torch."""

from collections.abc import Callable, Iterator

from reroll.errors import InvalidArgument, SourceEnded
from reroll.prepare.step import StepData

try:
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError as error:
    raise ImportError("PreparedDataset needs torch: pip install 'reroll[torch]'") from error

GetData = Callable[[int, int, float | None], StepData]


class PreparedDataset(IterableDataset):  # type: ignore[misc, unused-ignore]  # (untyped where torch is not installed)
    """Yields the StepData of one rank, step after step, until `last_step` or until the source has ended.

    For `DataLoader(dataset, batch_size=None)`: each item is a batch already. The data set remembers where it is: iterating
    again goes on with the next step.
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
        """Read from `get_data`: that of a Preparer, or whatever calls it from afar; `timeout` is that of each step."""
        super().__init__()
        self._get_data = get_data
        self._rank = rank
        self._last_step = last_step
        self._timeout = timeout
        self.next_step = first_step
        """The step that is read next."""

    def __iter__(self) -> Iterator[StepData]:
        """Yield step after step. Raises what `get_data` raises, and InvalidArgument in one of several workers."""
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
