"""Every verb, every argument, every nasty value: a call works or is refused, and the buffer goes on for all.

`USUAL` has a usual value for each argument of each verb, such that no call waits; a new verb or argument needs one.
"""

import inspect
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from border.nasty import NASTY, WORST, wrapped
from buffer.test_suite import Called
from reroll import (
    MinSize,
    NotStorable,
    ReplayBuffer,
    ReplayBufferConfig,
    RerollError,
    Reservation,
    Rollout,
    Status,
    connect,
    register,
)
from reroll.engine.ledger import closes
from reroll.testing.buffer.builders import group, rollout
from server.hosting import Host, hosted

VERBS = sorted(
    name
    for name, verb in inspect.getmembers(ReplayBuffer, inspect.isfunction)
    if not name.startswith("_") and name != "close"
)

USUAL: dict[str, Callable[[Path], dict[str, Any]]] = {
    "ack_lease": lambda _: {"lease": 10**6, "train_step": 1},
    "advance": lambda _: {"step": 1, "version": 1},
    "commit": lambda _: {"step": 0},
    "count": lambda _: {"task_name": "t", "group_status": "completed"},
    "count_statuses": lambda _: {"task_names": ["t"], "statuses": ["completed"]},
    "count_where": lambda _: {"where": {}},
    "delete": lambda _: {"which": []},
    "end_lease": lambda _: {"lease": 10**6},
    "forget": lambda _: {"uids": []},
    "get": lambda _: {"batch_size": 1, "task_name": "t", "group_status": "completed", "train_step": 1},
    "is_ready": lambda _: {"task_batch_sizes": {"t": 1}, "group_status": "completed"},
    "lease": lambda _: {
        "task_batch_sizes": {"t": 0},
        "group_status": "completed",
        "wait": False,
        "timeout": 0,
        "ttl_s": 1,
        "train_step": 1,
        "columns": [],
    },
    "ledger": lambda _: {},
    "metrics": lambda _: {"reader": "r", "detail": False},
    "nack_lease": lambda _: {"lease": 10**6},
    "patch": lambda _: {"uid": 1, "tags": {"x": 1}},
    "patch_many": lambda _: {"patches": {1: {"tags": {"x": 1}}}, "only_if_newer": 1},
    "peek": lambda _: {"uids": [1], "columns": []},
    "put": lambda _: {
        "items": group(members=2),
        "task_name": "t",
        "model_step": 1,
        "current_train_step": 1,
        "stale_threshold": 5,
        "token_stale_threshold": 5,
        "expired_groups_retryable": True,
        "priority": 1.0,
        "tags": {"x": 1},
        "uid": None,
        "put_id": None,
        "reservation": None,
        "timeout": 0,
    },
    "put_many": lambda _: {
        "groups": [group(members=2), group()],
        "task_name": "t",
        "model_step": 1,
        "current_train_step": 1,
        "stale_threshold": 5,
        "token_stale_threshold": 5,
        "expired_groups_retryable": True,
        "priorities": [1.0, None],
        "tags": [{"x": 1}, None],
        "uids": None,
        "put_ids": None,
        "reservation": None,
        "timeout": 0,
    },
    "query": lambda _: {"where": {}, "order_by": "uid", "limit": 5, "offset": 0},
    "refresh_staleness": lambda _: {
        "task_stale_thresholds": {"t": 5},
        "current_train_step": 1,
        "statuses": ["completed"],
        "task_token_stale_thresholds": {"t": 5},
        "expired_groups_retryable_by_task": {"t": True},
    },
    "release": lambda _: {"reservation": Reservation(10**6, "t", 1)},
    "reserve": lambda _: {"n": 1, "task_name": "t", "timeout": 0, "ttl_s": 1},
    "resume": lambda folder: {"path": folder / "nothing", "on_corrupt": "raise"},
    "rewind": lambda _: {"step": 0, "newer": "keep"},
    "sample": lambda _: {
        "n": 1,
        "task_name": "t",
        "timeout": 0,
        "replace": False,
        "allow_short": True,
        "train_step": 1,
        "columns": [],
    },
    "save": lambda folder: {"path": folder / "saved"},
    "set_rate_limiter": lambda _: {"task_name": "u", "rate_limiter": MinSize(1)},
    "set_sampler": lambda _: {"task_name": "u", "sampler": "uniform"},
    "stats": lambda _: {},
    "take_batch": lambda _: {
        "task_batch_sizes": {"t": 0},
        "group_status": "completed",
        "wait": False,
        "timeout": 0,
        "train_step": 1,
        "columns": [],
    },
    "to_arrow": lambda _: {"where": {}, "payloads": False, "place": None},
    "to_pandas": lambda _: {"where": {}, "payloads": False, "place": None},
    "trim_lease": lambda _: {"lease": 10**6, "uids": []},
    "update_priorities": lambda _: {"priorities": {1: 1.0}},
    "version": lambda _: {},
    "wait_overdue": lambda _: {"running": 10**6, "timeout": 0},
    "wait_version": lambda _: {"v": 0, "timeout": 0},
    "wait_ready": lambda _: {"task_batch_sizes": {"t": 0}, "group_status": "completed", "timeout": 0},
}
PATCHED = (
    "reward",
    "logprobs",
    "response_mask",
    "extra_fields",
    "error_msg",
    "anything",
    "__class__",
    "_status",
)


class Foreign:
    """A rollout of a trainer's own class."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(
            {
                "status": "completed",
                "seq_staleness": 0,
                "prompt_ids": [1],
                "response_ids": [1, 2],
                "response_model_steps": [1, 1],
                "logprobs": [0.0, 0.0],
                "response_mask": [1, 1],
                **fields,
            }
        )


register(Foreign, encode=lambda made: dict(vars(made)), decode=lambda fields: Foreign(**fields))
FIELDS = (*Rollout().to_dict(), *("group_uid", "group_id", "rollout_id", "session_id", "message", "tokens"))
FIELDS += ("response", "reward", "finish_reason", "error_msg", "routed_experts", "mm_info", "tool_calls")
FIELDS += (
    "num_tokens",
    "input_ids",
    "labels",
    "extra_fields",
    "prompt_ids",
    "response_ids",
    "logprobs",
    "response_mask",
)


def test_every_argument_of_every_verb_has_a_usual_value(tmp_path):
    for name in VERBS:
        parameters = inspect.signature(getattr(ReplayBuffer, name)).parameters.values()
        known = {each.name for each in parameters if each.kind is not each.VAR_KEYWORD} - {"self"}
        assert USUAL[name](tmp_path).keys() == known, name


class Memory:
    """A buffer in memory."""

    def __init__(self, folder: Path, host: Host) -> None:
        self.folder, self.host = folder, host
        self.config = ReplayBufferConfig(sampler="fifo", seed=1)
        if self.is_durable:
            self.config = self.config.model_copy(update={"store": folder / "store"})

    is_durable = False

    async def start(self) -> Any:
        return self.config.build()

    async def again(self, buffer: Any) -> Any:
        try:
            await buffer.save(self.folder / "checkpoint")
        except NotStorable:  # memory keeps what no file can hold
            return buffer
        await buffer.close()
        resumed = self.config.build()
        await resumed.resume(self.folder / "checkpoint")
        return resumed


class Durable(Memory):
    is_durable = True

    async def again(self, buffer: Any) -> Any:
        await buffer.close()
        return await self.start()


class Blocking(Durable):
    async def start(self) -> Any:
        return Called(self.config.build_blocking())


class Served(Durable):
    async def start(self) -> Any:
        self.address = self.host.start(self.config, "tcp://127.0.0.1:0")
        return connect(self.address, deadline_s=60)

    async def again(self, buffer: Any) -> Any:
        await buffer.close()
        self.host.stop(self.address)
        return await self.start()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path_factory.mktemp("host"))  # where a server makes directories of strange names
        with hosted() as made:
            yield made


@pytest.fixture(
    params=[pytest.param(WORST, id="worst"), pytest.param(tuple(NASTY), id="all", marks=pytest.mark.slow)]
)
def values(request: pytest.FixtureRequest) -> list[tuple[str, Callable[[], Any]]]:
    return [(name, NASTY[name]) for name in request.param if name in NASTY]


@pytest.fixture(
    params=[
        pytest.param(Memory, marks=pytest.mark.slow),
        Durable,
        pytest.param(Blocking, marks=pytest.mark.slow),
        Served,
    ]
)
async def place(
    request: pytest.FixtureRequest, tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Memory]:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield request.param(tmp_path, host)


async def tried(call: Callable[[], Any], what: Any) -> None:
    """Make a call, which works or is refused."""
    try:
        await call()
    except (RerollError, TypeError):
        pass
    except Exception as error:
        raise AssertionError(f"{what} raised {type(error).__name__}: {str(error)[:200]}") from error


async def still_works(buffer: Any, what: Any) -> None:
    """Put and take a group, and look at everything."""
    try:
        uid = await buffer.put(group("probe"), "probe", timeout=30)
        assert await buffer.count("probe", Status.COMPLETED) == 1
        ((taken,),) = (await buffer.take_batch({"probe": 1}, wait=True, timeout=30))[0].values()
        assert taken[0].group_id == "probe"
        assert uid is not None
        for amounts in (await buffer.ledger()).values():
            assert closes(amounts)
        await buffer.stats()
        await buffer.metrics()
        await buffer.query({}, order_by="group_id")
    except Exception as error:
        raise AssertionError(f"after {what}: {type(error).__name__}: {str(error)[:300]}") from error


async def comes_back(place: Memory, buffer: Any, what: Any) -> None:
    """Open the buffer anew, and find the same groups."""
    rows = {row.uid: (row.task_name, row.num_tokens, repr(row.tags)) for row in await buffer.query({})}
    again = await place.again(buffer)
    found = {row.uid: (row.task_name, row.num_tokens, repr(row.tags)) for row in await again.query({})}
    assert found.items() >= rows.items()  # leased groups are back
    await still_works(again, what)
    await again.peek(list(found))
    await again.close()


@pytest.mark.parametrize("verb", VERBS)
async def test_a_nasty_argument_fails_its_own_call_only(place, values, verb):
    buffer = await place.start()
    seeded = verb != "resume"  # which only a buffer that was never used can do
    if seeded:
        for _ in range(3):
            await buffer.put(group(members=2, reward=1.0), "t")
    if verb == "wait_version":
        await buffer.advance(0)  # else a wait without a timeout would not end
    arguments = list(USUAL[verb](place.folder))
    if verb == "patch":
        arguments += PATCHED
    for argument in arguments:
        usual = USUAL[verb](place.folder).get(argument, [])
        for name, make in values:
            for value in wrapped(make) if isinstance(usual, list | dict) else [make()]:
                given = {**USUAL[verb](place.folder), argument: value}
                what = f"{verb}({argument}={name} in {type(value).__name__})"
                await tried(lambda given=given: getattr(buffer, verb)(**given), what)
                await buffer.count("t", "completed")  # which raises StoreFailed, if that is what it did
        if seeded:
            await still_works(buffer, f"{verb}({argument}=...)")
    if seeded:
        await comes_back(place, buffer, verb)
    else:
        await still_works(buffer, verb)
        await buffer.close()


@pytest.mark.parametrize("field", sorted(set(FIELDS)))
async def test_a_nasty_field_fails_its_own_put_only(place, values, field):
    buffer = await place.start()
    for name, make in values:
        for value in wrapped(make):
            for kind in (Foreign, rollout):
                what = f"put({kind.__name__}({field}={name} in {type(value).__name__}))"

                async def put(kind=kind, value=value) -> None:
                    made = kind()
                    setattr(made, field, value)
                    await buffer.put([kind(), made], "t", model_step=1, timeout=0)

                await tried(put, what)
                await buffer.count("t", "completed")
    await still_works(buffer, field)
    await comes_back(place, buffer, field)
