"""The verbs that change what is there."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from reroll.buffer.arguments import (
    Where,
    checked_count,
    checked_flags,
    checked_statuses,
    checked_step,
    checked_task,
    checked_thresholds,
    checked_uids,
)
from reroll.buffer.expiring import Thresholds
from reroll.buffer.journal import Encoded
from reroll.buffer.patch import Patch
from reroll.buffer.slicing import ROWS_AT_ONCE, Slicing, slices_of
from reroll.engine.limits import Limiter, StalenessWindow, limiter_of
from reroll.engine.query import still_at
from reroll.engine.selectors.selector import SelectorSpec
from reroll.engine.selectors.specs import selector_spec
from reroll.engine.task import checked_priority
from reroll.errors import InvalidArgument, NotStorable, shown
from reroll.query import Query, Scalar, parse_query
from reroll.rollout import Status


class Changing(Slicing):
    """For trainers and tools."""

    async def refresh_staleness(
        self,
        *,
        task_stale_thresholds: Mapping[str, int],
        current_train_step: int,
        statuses: Iterable[Status | str] | None = None,
        task_token_stale_thresholds: Mapping[str, int | None] | None = None,
        expired_groups_retryable_by_task: Mapping[str, bool] | None = None,
    ) -> dict[str, int]:
        """Tell the step that is prepared next, and expire what is too stale for it; return how many newly did, by task.

        Expired groups are kept to be rolled again, or dropped where `expired_groups_retryable_by_task` says False, also
        those that expired before. A group without versions has staleness 0 from now on. Costs what expires, whatever is there. Raises
        InvalidArgument, and changes nothing, for a threshold below 1.
        """
        self._check_open()
        step = checked_step("current_train_step", current_train_step)
        if step is None:
            raise InvalidArgument("current_train_step must be told: the training step that is prepared next")
        thresholds = checked_thresholds("task_stale_thresholds", task_stale_thresholds)
        by_token = checked_thresholds(
            "task_token_stale_thresholds",
            {} if task_token_stale_thresholds is None else task_token_stale_thresholds,
            optional=True,
        )
        retryable = checked_flags(
            "expired_groups_retryable_by_task",
            {} if expired_groups_retryable_by_task is None else expired_groups_retryable_by_task,
        )
        chosen = None if statuses is None else checked_statuses(statuses)
        expired = {}
        tasks = {name: self._engine.named(name) for name in dict.fromkeys((*thresholds, *by_token))}
        for name, task in tasks.items():
            asked = Thresholds(thresholds.get(name), by_token.get(name), retryable.get(name, True))
            expired[name] = self._groups.learn_step(task, step, retryable=asked.retryable)
            expired[name] += self._groups.refresh(task, chosen, asked)
        self._waits.wake()
        await self._written()
        return expired

    async def delete(self, which: Iterable[int] | Where) -> int:
        """Delete resident groups, by uids or by a query, and return how many there were.

        Of many groups, other calls run in between; groups that leave in the meantime are not counted.
        """
        self._check_open()
        if isinstance(which, Mapping | Query):
            slots = await self._find(parse_query(which))
        else:
            slots = self._groups.resident_slots(checked_uids(which))
        deleted = 0
        for part, uids in slices_of(self._engine, slots, ROWS_AT_ONCE):
            if deleted:
                await self._pause()
            deleted += self._groups.delete(part[still_at(self._engine, part, uids)])
            self._waits.wake()
        await self._written()
        return deleted

    async def forget(self, uids: Iterable[int]) -> int:
        """Give up groups that were taken to be rolled again and will not come back; return how many there were."""
        self._check_open()
        forgotten = self._groups.forget_out(checked_uids(uids))
        self._waits.wake()
        await self._written()
        return forgotten

    async def update_priorities(self, priorities: Mapping[int, float]) -> list[int]:
        """Set priorities by uid and return the uids that are not resident.

        Raises InvalidPriority, and changes nothing, if any of them is negative, NaN, infinite or no number.
        """
        self._check_open()
        if not isinstance(priorities, Mapping):
            raise InvalidArgument(f"priorities must be a mapping of uids to numbers, not {shown(priorities)}")
        checked = {
            checked_count("uid", uid): checked_priority(value, f"priority of {shown(uid)}")
            for uid, value in priorities.items()
        }
        known = [uid for uid in checked if self._groups.is_resident(uid)]
        weights = np.array([checked[uid] for uid in known], np.float64)
        self._engine.set_priorities(self._groups.slots(known), weights)
        self._waits.wake()
        unknown = [uid for uid in checked if not self._groups.is_resident(uid)]
        await self._written()
        return unknown

    async def patch(
        self, /, uid: int, *, tags: Mapping[str, Scalar] | None = None, **fields: Sequence[Any]
    ) -> None:
        """Give the rollouts of a group fields that come late, such as `reward=[1.0, 0.0]`: one value for each.

        A field that a rollout does not have goes into its `extra_fields`. Raises UnknownUid, InvalidArgument; NotStorable
        where groups are kept on disk, and nothing has changed then.
        """
        self._check_open()
        await self._patch({checked_count("uid", uid): Patch(fields, tags)}, skip_gone=False)

    async def patch_many(
        self, patches: Mapping[int, Mapping[str, Any]], *, only_if_newer: int | None = None
    ) -> list[int]:
        """Give the rollouts of several groups fields that come late, in one step and one commit.

        Args:
            patches: for each uid what `patch` takes by name: `{17: {"reward": [1.0, 0.0]}, 18: {"tags": {"level": 2}}}`.
            only_if_newer: the training step that the values were computed at. A group that a patch of this step or a later
                one has reached keeps what it has, so that late results of several workers never replace newer ones.

        Returns:
            The uids of groups that are gone.

        Raises InvalidArgument, and NotStorable where groups are kept on disk, with the uid: then nothing has changed.
        Cost: O(members of the patched groups).

        """
        self._check_open()
        step = checked_step("only_if_newer", only_if_newer)
        checked: dict[int, Patch] = {}
        if not isinstance(patches, Mapping):
            raise InvalidArgument(f"patches must be a mapping of uids to fields, not {shown(patches)}")
        for uid, fields in patches.items():
            if not isinstance(fields, Mapping) or not all(isinstance(name, str) for name in fields):
                raise InvalidArgument(
                    f"group {shown(uid)}: the patch must be fields by name, not {shown(fields)}"
                )
            rest = dict(fields)
            checked[checked_count("uid", uid)] = Patch(tags=rest.pop("tags", None), fields=rest)
        return await self._patch(checked, skip_gone=True, step=step)

    async def _patch(
        self, patches: Mapping[int, Patch], *, skip_gone: bool, step: int | None = None
    ) -> list[int]:
        """Patch groups when their rollouts are in memory; return the uids that are gone, which are left out if asked."""
        disk, groups, encoded = self._disk, self._groups, list[Encoded]()
        stored: dict[int, Encoded] = {}

        def accept(uid: int, items: Sequence[Any]) -> None:
            assert disk is not None  # noqa: S101  (only asked for by a durable buffer)
            stored[uid] = disk.encode_now(items)
            encoded.append(stored[uid])

        try:
            if disk is not None:
                # References are fetched before anything changes; `accept` names the path of what cannot be stored.
                with suppress(NotStorable):
                    fields = [value for patch in patches.values() for value in patch.fields.values()]
                    late = [list(value) for value in fields if isinstance(value, Sequence | np.ndarray)]
                    encoded.append(await disk.encode(late))
                await disk.fetch([group for uid in patches if (group := groups.find(uid)) is not None])
                self._check_open()
            gone = [uid for uid in patches if groups.slot_of(uid) is None] if skip_gone else []
            chosen = {
                uid: patch
                for uid, patch in patches.items()
                if uid not in gone and (step is None or groups.is_newer(uid, step))
            }
            groups.patch(chosen, None if disk is None else accept, step=step)
            for uid, one in stored.items():
                if disk is not None:
                    disk.add(uid, one)
            self._waits.wake()  # groups may take fewer bytes now
        finally:
            for one in encoded:
                one.held.release()
        await self._written()
        return gone

    async def set_rate_limiter(self, task_name: str, rate_limiter: Limiter) -> None:
        """Give a task another rate limiter; its counters stay. Raises InvalidConfig for what can never proceed.

        What is saved or kept on disk remembers it, unless it is of a class of your own. A buffer that comes back has it
        again as long as the configuration has the limiter that it had then.
        """
        self._check_open()
        task = self._engine.task(checked_task(task_name))
        if isinstance(rate_limiter, StalenessWindow):
            raise InvalidArgument(
                "a StalenessWindow is given when the buffer is built; here goes a rate limiter"
            )
        task.set_limiter(limiter_of(rate_limiter))
        self._waits.wake()
        await self._written()

    async def set_sampler(self, task_name: str, sampler: SelectorSpec | str) -> None:
        """Give a task's sampler other parameters at run time, such as `Prioritized(beta=0.8)`.

        A new `beta` costs O(1), other parameters O(COMPLETED groups of the task). Files remember the parameters, unless the
        sampler is of a class of your own; a reopened buffer has them again as long as its configuration is the same.

        Args:
            task_name: the task.
            sampler: a sampler of the kind that the task is configured with, or its mapping of `type` and options.

        Raises InvalidConfig for a sampler of another kind or impossible parameters, Closed: then nothing has changed.

        """
        self._check_open()
        self._engine.task(checked_task(task_name)).set_sampler(selector_spec(sampler))
        self._waits.wake()
        await self._written()
