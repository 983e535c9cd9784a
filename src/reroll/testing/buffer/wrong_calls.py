"""Calls that must be refused, and what their errors must name."""

from collections.abc import Awaitable, Callable
from typing import Any

from reroll.rollout import Rollout
from reroll.testing.buffer.builders import COMPLETED, FAILED, group, rollout

WRONG_PUTS: list[tuple[dict[str, Any], str]] = [
    ({"items": [rollout(), rollout(status="aborted")], "stale_threshold": 0}, "stale_threshold"),
    ({"stale_threshold": -1}, "stale_threshold"),
    ({"stale_threshold": True}, "stale_threshold"),
    ({"stale_threshold": "3"}, "stale_threshold"),
    ({"token_stale_threshold": 0}, "token_stale_threshold"),
    ({"model_step": -1}, "model_step"),
    ({"model_step": 1.5}, "model_step"),
    ({"model_step": 2**70}, "model_step"),
    ({"current_train_step": -1}, "current_train_step"),
    ({"current_train_step": "5"}, "current_train_step"),
    ({"current_train_step": 2**70}, "current_train_step"),
    ({"task_name": ""}, "task_name"),
    ({"task_name": 5}, "task_name"),
    ({"task_name": "z\udc80"}, "task_name"),
    ({"task_name": "x" * 10_000}, "task_name"),
    ({"model_step": 10**5000}, "model_step"),
    ({"stale_threshold": 2**64}, "stale_threshold"),
    ({"tags": {"x": 10**400}}, "tags"),
    ({"expired_groups_retryable": "no"}, "expired_groups_retryable"),
    ({"items": [rollout(num_tokens=2**40)]}, "num_tokens"),
    ({"items": [rollout(num_tokens=2**39), rollout(num_tokens=2**39)]}, "num_tokens"),
    ({"items": [rollout(reward=10**400)]}, "reward"),
    ({"task_name": ["t"]}, "task_name"),
    ({"items": None}, "items"),
    ({"items": 5}, "items"),
    ({"items": "abc"}, "items"),
    ({"items": {"status": "completed"}}, "items"),
    ({"items": [{"status": "completed"}]}, "rollout 0"),
    ({"items": [rollout(), object()]}, "rollout 1"),
    ({"priority": -1.0}, "priority"),
    ({"priority": float("nan")}, "priority"),
    ({"priority": "high"}, "priority"),
    ({"tags": ["x"]}, "tags"),
    ({"tags": {"x": []}}, "tags"),
    ({"tags": {1: "x"}}, "tags"),
    ({"uid": 99}, "99"),
    ({"uid": "1"}, "uid|group"),
    ({"put_id": []}, "put_id"),
    ({"timeout": -1}, "timeout"),
    ({"timeout": "1"}, "timeout"),
    ({"timeout": float("nan")}, "timeout"),
]


def _with(**fields: Any) -> Rollout:
    """Return a rollout whose fields were assigned one by one, so that they were never compared."""
    made = rollout()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


WRONG_ROLLOUTS: list[tuple[Callable[[], Rollout], str]] = [
    (lambda: _with(logprobs=[0.5]), "logprobs"),
    (lambda: _with(logprobs=[0.5] * 3), "logprobs"),
    (lambda: _with(response_mask=[1]), "response_mask"),
    (lambda: _with(response_model_steps=[1]), "response_model_steps"),
    (lambda: _with(response_model_steps=[1, 1, 1]), "response_model_steps"),
    (lambda: _with(reward="good"), "reward"),
    (lambda: _with(reward=float("nan")), "reward is nan"),
    (lambda: _with(reward={"score": float("inf")}), "reward is inf"),
    (lambda: _with(logprobs=[-0.5, float("nan")]), "logprobs has NaN"),
    (lambda: _with(logprobs=[-0.5, float("nan")], response_mask=[0, 1]), "logprobs has NaN"),
    (lambda: _with(num_tokens=-1), "num_tokens"),
]

UNKNOWN_STATUS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "get": lambda buffer: buffer.get(1, "t", "done"),
    "get 2": lambda buffer: buffer.get(1, "t", 1),
    "get 3": lambda buffer: buffer.get(1, "t", None),
    "take_batch": lambda buffer: buffer.take_batch({"t": 1}, group_status="COMPLETED"),
    "is_ready": lambda buffer: buffer.is_ready({"t": 1}, group_status="done"),
    "wait_ready": lambda buffer: buffer.wait_ready({"t": 1}, group_status="done"),
    "count": lambda buffer: buffer.count("t", "done"),
    "count_statuses": lambda buffer: buffer.count_statuses(["t"], ["completed", "done"]),
    "count_statuses 2": lambda buffer: buffer.count_statuses([], ["done"]),
    "refresh_staleness": lambda buffer: buffer.refresh_staleness(
        task_stale_thresholds={"t": 1}, current_train_step=9, statuses=["done"]
    ),
    "query": lambda buffer: buffer.query({"status": "done"}),
    "delete": lambda buffer: buffer.delete({"status": "done"}),
}

WRONG_ARGUMENTS: list[tuple[Callable[[Any], Awaitable[Any]], str]] = [
    (lambda buffer: buffer.get("1", "t", COMPLETED), "batch size"),
    (lambda buffer: buffer.get(1.0, "t", COMPLETED), "batch size"),
    (lambda buffer: buffer.get(1, "", COMPLETED), "task_name"),
    (lambda buffer: buffer.get(1, None, COMPLETED), "task_name"),
    (lambda buffer: buffer.get(1, ["t"], COMPLETED), "task_name"),
    (lambda buffer: buffer.get(1, "t", COMPLETED, train_step=-1), "train_step"),
    (lambda buffer: buffer.get(1, "t", COMPLETED, train_step=2**70), "train_step"),
    (lambda buffer: buffer.take_batch(["t"]), "task_batch_sizes"),
    (lambda buffer: buffer.take_batch({"z\udc80": 1}), "task_name"),
    (lambda buffer: buffer.take_batch({"t": 1}, wait="no"), "wait"),
    (lambda buffer: buffer.is_ready({"z\udc80": 1}), "task_name"),
    (lambda buffer: buffer.count("z\udc80", COMPLETED), "task_name"),
    (lambda buffer: buffer.reserve(1, "z\udc80"), "task_name"),
    (lambda buffer: buffer.nack_lease("z"), "lease"),
    (lambda buffer: buffer.patch(1, _status=["aborted"]), "_status"),
    (lambda buffer: buffer.patch(1, reward=[10**400]), "reward"),
    (lambda buffer: buffer.update_priorities({"1": 1.0}), "uid"),
    (lambda buffer: buffer.query({}, limit=True), "limit"),
    (lambda buffer: buffer.take_batch({"t": 1, "u": None}), "batch size"),
    (lambda buffer: buffer.take_batch({"t": 1}, train_step="3"), "train_step"),
    (lambda buffer: buffer.take_batch({"t": 1}, wait=True, timeout=-1), "timeout"),
    (lambda buffer: buffer.is_ready({"t": "1"}), "batch size"),
    (lambda buffer: buffer.wait_ready({"t": 1}, timeout="1"), "timeout"),
    (lambda buffer: buffer.wait_version(-1), "v must be"),
    (lambda buffer: buffer.wait_version(None), "v must be"),
    (lambda buffer: buffer.wait_version("1"), "v must be"),
    (lambda buffer: buffer.wait_version(1, timeout=-1), "timeout"),
    (lambda buffer: buffer.wait_overdue("1"), "running"),
    (lambda buffer: buffer.wait_overdue(None), "running"),
    (lambda buffer: buffer.wait_overdue(1, timeout=-1), "timeout"),
    (lambda buffer: buffer.count(5, COMPLETED), "task_name"),
    (lambda buffer: buffer.count_statuses("t", [COMPLETED]), "task_names"),
    (lambda buffer: buffer.count_statuses(["t"], "completed"), "status"),
    (lambda buffer: buffer.count_statuses(5, [COMPLETED]), "task_names"),
    (lambda buffer: buffer.peek(1), "uids"),
    (lambda buffer: buffer.peek(["1"]), "uid"),
    (lambda buffer: buffer.delete(1), "uids"),
    (lambda buffer: buffer.delete("1"), "uids"),
    (lambda buffer: buffer.forget({1: 1}), "uids"),
    (lambda buffer: buffer.update_priorities([1]), "priorities"),
    (lambda buffer: buffer.query({}, limit=-1), "limit"),
    (lambda buffer: buffer.query({}, order_by="length"), "order_by"),
    (lambda buffer: buffer.query({}, order_by=["uid"]), "order_by"),
    (lambda buffer: buffer.patch(1, reward=[1.0, 2.0]), "reward"),
    (lambda buffer: buffer.patch(1, reward=1.0), "reward"),
    (lambda buffer: buffer.patch(1, reward=["good"]), "reward"),
    (lambda buffer: buffer.patch(1, logprobs=[[0.5]]), "logprobs"),
    (lambda buffer: buffer.patch(1, status=["aborted"]), "status"),
    (lambda buffer: buffer.patch(1, priority=[2.0]), "update_priorities"),
    (lambda buffer: buffer.patch(1, response_ids=[[1, 2]]), "response_ids"),
    (lambda buffer: buffer.patch(1, reward=[1.0], tags=["x"]), "tags"),
]

WRONG_REFRESHES: list[tuple[dict[str, Any], str]] = [
    ({"task_stale_thresholds": {"t": 0}}, "task_stale_thresholds"),
    ({"task_stale_thresholds": {"t": 1, "u": -1}}, "task_stale_thresholds"),
    ({"task_stale_thresholds": {"t": "1"}}, "task_stale_thresholds"),
    ({"task_stale_thresholds": 1}, "task_stale_thresholds"),
    ({"task_token_stale_thresholds": {"t": 0}}, "task_token_stale_thresholds"),
    ({"task_token_stale_thresholds": [1]}, "task_token_stale_thresholds"),
    ({"current_train_step": -1}, "current_train_step"),
    ({"current_train_step": None}, "current_train_step"),
    ({"current_train_step": "9"}, "current_train_step"),
    ({"current_train_step": 2**70}, "current_train_step"),
    ({"statuses": [COMPLETED, FAILED]}, "failed"),
    ({"statuses": "completed"}, "statuses"),
    ({"statuses": 5}, "statuses"),
    ({"expired_groups_retryable_by_task": [True]}, "expired_groups_retryable_by_task"),
]

EVERY_VERB: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "put": lambda buffer: buffer.put(group(), "t"),
    "put 2": lambda buffer: buffer.put([], "t"),
    "get": lambda buffer: buffer.get(1, "t", COMPLETED),
    "take_batch": lambda buffer: buffer.take_batch({"t": 1}),
    "take_batch 2": lambda buffer: buffer.take_batch({"t": 1}, wait=True),
    "refresh_staleness": lambda buffer: buffer.refresh_staleness(
        task_stale_thresholds={"t": 1}, current_train_step=1
    ),
    "is_ready": lambda buffer: buffer.is_ready({"t": 1}),
    "wait_ready": lambda buffer: buffer.wait_ready({"t": 1}),
    "version": lambda buffer: buffer.version(),
    "wait_version": lambda buffer: buffer.wait_version(1),
    "wait_overdue": lambda buffer: buffer.wait_overdue(1),
    "count": lambda buffer: buffer.count("t", COMPLETED),
    "count_statuses": lambda buffer: buffer.count_statuses(["t"], [COMPLETED]),
    "count_statuses 2": lambda buffer: buffer.count_statuses([], []),
    "count_where": lambda buffer: buffer.count_where({}),
    "query": lambda buffer: buffer.query({}),
    "peek": lambda buffer: buffer.peek([]),
    "delete": lambda buffer: buffer.delete([]),
    "forget": lambda buffer: buffer.forget([]),
    "update_priorities": lambda buffer: buffer.update_priorities({}),
    "patch": lambda buffer: buffer.patch(1, reward=[1.0]),
    "patch_many": lambda buffer: buffer.patch_many({}),
    "put_many": lambda buffer: buffer.put_many([], "t"),
    "set_sampler": lambda buffer: buffer.set_sampler("t", "fifo"),
    "stats": lambda buffer: buffer.stats(),
    "metrics": lambda buffer: buffer.metrics(),
    "ledger": lambda buffer: buffer.ledger(),
}
