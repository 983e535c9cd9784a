"""RerollSampler: verl's replay buffer, in which reroll decides what is trained, and how often.

verl knows a group as a prompt key and the keys of its trajectories. The sampler puts one entry for each finished group into a reroll
buffer, which draws; data and tags stay in TransferQueue. verl deletes what it has trained. So a group that may be trained again
is handed out as a copy under new keys, and only its last use hands out the rows themselves.
"""

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync
from verl.utils.skip import SkipManager

from reroll.errors import WaitTimeout
from reroll.integrations.verl.options import ReplayOptions
from reroll.integrations.verl.seams import Trainer
from reroll.rollout import Rollout, Status
from reroll.sample import Sample

PARTITION: Final = "train"
TASK: Final = "train"
_STATE: Final = "sampler.json"
_OF_TOKENS: Final = re.compile("token|length|bytes")
"""Metrics of data, which the buffer does not have here."""
_log: Final = logging.getLogger(__name__)


class RerollSampler(ReplayBuffer):
    """A sampler for `trainer.v1.sampler.custom_sampler`; its options are `sampler_kwargs`, see `ReplayOptions`.

    Without replay it is verl's own sampler, except that a synchronous trainer with filtered groups keeps surplus groups for its next
    step, where verl deletes them. `buffer` is the reroll buffer that decides.
    """

    def __new__(cls, *, trainer_mode: str, **_: Any) -> "RerollSampler":  # noqa: PYI034  (one of two classes)
        """Return a sampler of the trainer's mode."""
        return object.__new__(cls if trainer_mode == "sync" else AsyncRerollSampler)

    def __init__(
        self,
        *,
        trainer_mode: str,
        trainer_config: Any,
        max_off_policy_threshold: int | None,
        max_off_policy_strategy: str,
        sampler_kwargs: Mapping[str, Any],
        refill_fn: Any = None,
    ) -> None:
        self.options = ReplayOptions.of(sampler_kwargs)
        super().__init__(
            trainer_mode=trainer_mode,
            trainer_config=trainer_config,
            max_off_policy_threshold=max_off_policy_threshold,
            max_off_policy_strategy=max_off_policy_strategy,
            sampler_kwargs=sampler_kwargs,
            poll_interval=self.options.poll_interval,
            refill_fn=refill_fn,
            filter_groups_metric=self.options.filter_groups_metric,
        )
        is_filtered = self.filter_groups_metric is not None
        self._decides = self.options.replays or (trainer_mode == "sync" and is_filtered)
        if not self._decides:
            return
        self.buffer = self.options.buffer_config().build_blocking()
        self._uids: dict[str, int] = {}
        """The buffer's uid of each group in it, by verl's uid."""
        self._names: dict[int, str] = {}
        self._surplus = 0
        """Prompts that verl submitted beyond what was trained fresh: replayed groups took the place of new ones."""
        self._is_settled = False
        self._trainer = Trainer(refill_fn, self.save, self.load, self._withhold, self.clear)
        self.refill_fn = self._refill

    # --- drawing

    def sample(
        self, global_steps: int, partition_id: str, batch_size: int
    ) -> tuple[KVBatchMeta, dict[str, Any]]:
        """Return the groups of the next update, and metrics. Waits as verl's own sampler does."""
        if self._decides and partition_id == PARTITION:
            return self._sample(global_steps, partition_id, batch_size)  # type: ignore[no-any-return]
        return super().sample(global_steps, partition_id, batch_size)  # type: ignore[no-any-return]

    @SkipManager.annotate_tq(role="rollout_tq", phase="sample")
    def _sample(
        self, global_steps: int, partition_id: str, batch_size: int
    ) -> tuple[KVBatchMeta, dict[str, Any]]:
        self._settle()
        metrics: dict[str, Any] = {}
        while True:
            _, evicted = ReplayBufferAsync.wait_for_sampleable(self, global_steps, partition_id, batch_size)
            metrics.update(evicted)
            try:
                drawn = self.buffer.sample(batch_size, TASK, train_step=global_steps, timeout=0)
                break
            except WaitTimeout:  # some were too stale for this step
                self._clear_dropped()
                self._wait_for_next_poll(partition_id, 0.0)
        batch = self._hand_out(drawn)
        self._surplus += sum(sample.info.times_sampled > 1 for sample in drawn)
        self._clear_dropped()
        return batch, {**metrics, **self.metrics()}

    def metrics(self) -> dict[str, float]:
        """Return the buffer's metrics since the last call, for verl's metrics."""
        found = {
            name: float(value) for name, value in self.buffer.metrics().items() if not _OF_TOKENS.search(name)
        }
        found["surplus_prompts"] = float(self._surplus)
        return {f"replay_buffer/{name}": value for name, value in found.items()}

    def _has_enough_samples(
        self, global_steps: int, partition_id: str, batch_size: int, sampleable_keys: set[str]
    ) -> bool:
        if not self._decides or partition_id != PARTITION:
            return super()._has_enough_samples(global_steps, partition_id, batch_size, sampleable_keys)  # type: ignore[no-any-return]
        self._absorb(sampleable_keys)
        return self._may_draw(global_steps) and self.buffer.is_ready({TASK: batch_size})

    def _may_draw(self, global_steps: int) -> bool:
        """Return whether all prompts have come back: a synchronous trainer stops its engines after this call."""
        del global_steps
        return not self.pending_keys[PARTITION] and not self.running_keys[PARTITION]

    def _absorb(self, uids: Iterable[str]) -> None:
        """Put groups that are new into the buffer, those of older prompts first."""
        steps = self.prompt_global_steps[PARTITION]
        new = sorted((uid for uid in uids if uid not in self._uids), key=lambda uid: steps.get(uid, 0))
        if not new:
            return
        rewards = self._rewards(new)
        for uid in new:
            rollouts = [
                Rollout(response_ids=[0], reward=reward, status=Status.COMPLETED) for reward in rewards[uid]
            ]
            stored = self.buffer.put(
                rollouts, TASK, model_step=max(0, steps.get(uid, 0) - 1), tags={"uid": uid}
            )
            if stored is not None:
                self._uids[uid], self._names[stored] = stored, uid
            else:  # too stale for any step
                self._clear_groups(PARTITION, {uid})
                self._refill(1)
        self._clear_dropped()

    def _rows(self, uids: Iterable[str]) -> dict[str, list[str]]:
        """Return the trajectory keys of groups."""
        found: dict[str, list[str]] = {uid: [] for uid in uids}
        for key in self.partitions[PARTITION]:
            uid = key.split("_")[0]
            if uid in found:
                found[uid].append(key)
        return found

    def _rewards(self, uids: list[str]) -> dict[str, list[float | None]]:
        """Return the reward of each trajectory of groups, if priorities need them."""
        rows = self._rows(uids) if self.options.priority_signal else {}
        rewards: dict[str, list[float | None]] = {uid: [] for uid in uids}
        if keys := [key for found in rows.values() for key in found]:
            data = tq.kv_batch_get(keys=keys, partition_id=PARTITION, select_fields=["rm_scores"])
            for key, scores in zip(keys, data["rm_scores"].unbind(), strict=True):
                rewards[key.split("_")[0]].append(float(scores.sum()))
        return {uid: found or [None] for uid, found in rewards.items()}

    def _hand_out(self, drawn: Sequence[Sample]) -> KVBatchMeta:
        """Return a batch of drawn groups, copied where they stay."""
        uids = {self._names[sample.info.uid]: sample.info for sample in drawn}
        rows, tags = self._rows(uids), self.partitions[PARTITION]
        stays = {
            uid for uid, info in uids.items() if info.times_sampled < self.options.max_uses and rows[uid]
        }
        given = {uid: f"{uuid4()}" if uid in stays else uid for uid in uids}
        old = [key for uid in uids for key in rows[uid]]
        new = [given[uid] + key.removeprefix(uid) for uid in uids for key in rows[uid]]
        moved = {before: after for before, after in zip(old, new, strict=True) if before != after}
        if moved:
            data = tq.kv_batch_get(keys=list(moved), partition_id=PARTITION)
            copied = [{**tags[key], "reroll_copy": True} for key in moved]
            tq.kv_batch_put(keys=list(moved.values()), partition_id=PARTITION, fields=data, tags=copied)
        if prompts := [uid for uid, info in uids.items() if info.times_sampled == 1]:
            tq.kv_clear(keys=prompts, partition_id=PARTITION)
        self._forget(uid for uid in uids if uid not in stays)
        return KVBatchMeta(partition_id=PARTITION, keys=new, tags=[tags[key] for key in old])

    # --- groups that leave, and prompts that take their place

    def _clear_groups(self, partition_id: str, uids: set[str]) -> None:
        super()._clear_groups(partition_id, uids)
        if self._decides and partition_id == PARTITION:
            self._forget(uids)

    def _forget(self, uids: Iterable[str]) -> None:
        known = {uid: self._uids.pop(uid) for uid in uids if uid in self._uids}
        for stored in known.values():
            del self._names[stored]
        if known:
            self.buffer.delete(known.values())

    def _clear_dropped(self) -> None:
        """Delete the rows of groups that the buffer has dropped: too stale, or evicted. New ones are replaced by prompts."""
        if len(self.buffer) == len(self._uids):
            return
        left = {row.uid for row in self.buffer.query({})}
        dropped = {uid for uid, stored in self._uids.items() if stored not in left}
        unused = dropped & self.prompt_global_steps[PARTITION].keys()
        self._clear_groups(PARTITION, dropped)
        self._refill(len(unused))

    def _refill(self, prompts: int) -> None:
        """Replace groups that left untrained, first by prompts that replay made superfluous."""
        covered = min(prompts, self._surplus)
        self._surplus -= covered
        if prompts > covered:
            self._surplus += self._trainer.refill(prompts - covered) - (prompts - covered)

    def _withhold(self, prompts: int) -> int:
        withheld = min(prompts, self._surplus)
        self._surplus -= withheld
        return withheld

    def clear(self) -> None:
        """Delete all groups from TransferQueue; called after the last step."""
        self._sync_metadata_from_transfer_queue()
        self._clear_groups(PARTITION, {*self._uids, *self.prompt_global_steps[PARTITION]})

    # --- checkpoints

    def save(self, path: str | Path) -> None:
        """Save the state: which groups are there, how often each was used, and what else decides."""
        self.buffer.save(path)
        (Path(path) / _STATE).write_text(json.dumps({"surplus": self._surplus}))

    def load(self, path: str | Path) -> None:
        """Restore what `save` wrote; called before the first sample. A missing path is logged, and changes nothing."""
        if not Path(path).exists():
            _log.warning("%s does not exist: replay starts with the groups in TransferQueue", path)
            return
        self.buffer.resume(path)
        self._surplus = json.loads((Path(path) / _STATE).read_text())["surplus"]
        self._uids = {str(row.tags["uid"]): row.uid for row in self.buffer.query({})}
        self._names = {stored: uid for uid, stored in self._uids.items()}

    def _settle(self) -> None:
        """Before the first sample, make TransferQueue and buffer agree: neither has what the other does not know."""
        if self._is_settled:
            return
        self._is_settled = True
        self._sync_metadata_from_transfer_queue()
        rows = self.partitions[PARTITION]
        present = {key.split("_")[0] for key in rows} | self.prompt_global_steps[PARTITION].keys()
        self._forget([uid for uid in self._uids if uid not in present])
        known = self._uids.keys() | self.prompt_global_steps[PARTITION].keys()
        if lost := [key for key in rows if key.split("_")[0] not in known]:  # of the step that a crash cut
            tq.kv_clear(keys=lost, partition_id=PARTITION)


class AsyncRerollSampler(RerollSampler, ReplayBufferAsync):
    """The sampler of asynchronous trainers."""

    def _may_draw(self, global_steps: int) -> bool:
        """Return whether no prompt under way must be waited for (`max_off_policy_strategy="wait"`)."""
        return bool(ReplayBufferAsync._has_enough_samples(self, global_steps, PARTITION, 0, set()))

    def get_sampleable_count(self, global_steps: int, partition_id: str) -> int:
        """Return how many groups could be drawn: new ones, and as many used ones as their share allows."""
        fresh = int(super().get_sampleable_count(global_steps, partition_id))
        if not self._decides or partition_id != PARTITION:
            return fresh
        used = len(self._uids.keys() - self.prompt_global_steps[PARTITION].keys())
        return fresh + min(used, int(fresh * (1 - self.options.fresh_share) / self.options.fresh_share))
