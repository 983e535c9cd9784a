"""Storages: alone, by example and by generated queries; and as the view of a buffer."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from integrations.states import state
from reroll import InvalidArgument, QueryError, Status
from reroll.integrations.xtuner import (
    BetweenNode,
    FIFOReplayPolicy,
    NaiveStorage,
    PandasStorage,
    ReplayBuffer,
    ScalarNode,
    SetNode,
    StalenessReplayPolicy,
    StorageBackend,
    StorageItem,
    parse_query,
)

KINDS = [NaiveStorage, PandasStorage]
GROUPS = [[state(1)], [state(2), state(3)], []]


def item(group=None, task_name="math", status=Status.COMPLETED, staleness=0):
    return StorageItem(
        [state()] if group is None else group,
        uid=0,
        timestamp_id=0,
        task_name=task_name,
        status=status,
        staleness=staleness,
    )


async def uids(storage, query):
    return [found.uid for found in await storage.get(query)]


@pytest.mark.parametrize("kind", KINDS)
class TestAlone:
    async def test_items_come_back_as_they_were_put(self, kind):
        storage, group = kind(), [state(1)]
        given_item = item(group, staleness=3)
        assert await storage.put(given_item) == 1
        assert await storage.put(item()) == 2
        (found,) = await storage.get({"staleness": 3})
        assert found == replace(given_item, uid=1, timestamp_id=1)
        assert found.item is group
        assert given_item.uid == 0
        assert len(storage) == 2

    async def test_what_is_done_to_results_stays_outside(self, kind):
        storage = kind()
        await storage.put(item())
        (found,) = await storage.get({})
        found.staleness = 9
        assert await storage.count({"staleness": 9}) == 0

    async def test_uids_are_never_used_again(self, kind):
        storage = kind()
        for _ in range(3):
            await storage.put(item())
        await storage.delete([3, 77])
        assert await storage.put(item()) == 4
        await storage.delete([])
        assert await uids(storage, {}) == [1, 2, 4]

    async def test_update_keeps_uid_and_timestamp(self, kind):
        storage = kind()
        for _ in range(2):
            await storage.put(item())
        changed = replace(item([state(7)], status=Status.EXPIRED, staleness=4), uid=1, timestamp_id=99)
        await storage.update([changed, replace(changed, uid=5)])
        assert len(storage) == 2
        (found,) = await storage.get({"status": "expired"})
        assert found == replace(changed, timestamp_id=1)
        assert await uids(storage, {}) == [1, 2]

    @pytest.mark.parametrize("other", KINDS)
    async def test_state_has_exact_counters(self, kind, other):
        storage = kind()
        for number in range(3):
            await storage.put(item(staleness=number))
        await storage.delete([1, 3])
        copy = other()
        copy.load_state_dict(storage.state_dict())
        assert await copy.get({}) == await storage.get({})
        assert await copy.put(item()) == await storage.put(item()) == 4
        assert (await copy.get({"uid": 4}))[0].timestamp_id == 4
        await copy.delete([2])
        assert await storage.count({"uid": 2}) == 1

    async def test_the_state_of_an_empty_storage_has_its_counters_too(self, kind):
        storage, copy = kind(), kind()
        await storage.put(item())
        await storage.delete([1])
        copy.load_state_dict(storage.state_dict())
        assert await copy.put(item()) == 2

    @pytest.mark.parametrize("state_dict", [{}, {"items": [1], "next_uid": 1, "next_timestamp_id": 1}, None])
    async def test_another_state_is_refused(self, kind, state_dict):
        storage = kind()
        await storage.put(item())
        with pytest.raises(InvalidArgument):
            storage.load_state_dict(state_dict)
        assert len(storage) == 1

    async def test_an_unknown_status_is_refused(self, kind):
        storage = kind()
        with pytest.raises(InvalidArgument, match="is not a status"):
            await storage.put(item(status="done"))
        assert len(storage) == 0

    @pytest.mark.parametrize("verb", ["get", "count"])
    async def test_wrong_queries_are_refused_also_when_empty(self, kind, verb):
        with pytest.raises(QueryError):
            await getattr(kind(), verb)({"nope": 1})

    @pytest.mark.parametrize(
        ("query", "found"),
        [
            ({"item": GROUPS[1]}, [2]),
            ({"item": {"$ne": GROUPS[1]}}, [1, 3]),
            ({"item": {"$in": [GROUPS[0], GROUPS[2]]}}, [1, 3]),
            ({"item": {"$not_in": [GROUPS[0], GROUPS[2]]}}, [2]),
            ({"item": {"$in": []}}, []),
            ({"$not": {"item": GROUPS[1], "uid": 2}}, [1, 3]),
            ({"item": [state(2), state(3)]}, [2]),  # equal ones
        ],
        ids=["eq", "ne", "in", "not in", "in nothing", "not", "equal ones"],
    )
    async def test_groups_are_compared_as_a_whole(self, kind, query, found):
        storage = kind()
        for group in GROUPS:
            await storage.put(item(group))
        assert await uids(storage, query) == found

    @pytest.mark.parametrize(
        ("policy", "order"), [(FIFOReplayPolicy(), [1, 2, 3, 4]), (StalenessReplayPolicy(), [2, 1, 3, 4])]
    )
    async def test_policies_take_from_it_in_order(self, kind, policy, order):
        storage = kind()
        for number, staleness in enumerate((3, 8, 3, 0), start=1):
            await policy.put(item([state(number)], staleness=staleness), storage)
        await policy.put(item([]), storage)  # nothing to store
        assert await policy.count({}, storage) == 4
        assert await policy.get(0, {}, storage) == await policy.get(-1, {}, storage) == []
        taken = await policy.get(3, {}, storage) + await policy.get(3, {}, storage)
        assert [group[0].rollout_id for group in taken] == order
        assert len(storage) == 0


async def test_a_frame():
    pandas = pytest.importorskip("pandas")
    storage, group = PandasStorage(), [state(1)]
    await storage.put(item(group))
    await storage.put(item(status=Status.ABORTED, staleness=2))
    frame = storage.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == ["item", "uid", "timestamp_id", "task_name", "status", "staleness"]
    assert frame.status.tolist() == ["completed", "aborted"]
    assert frame.staleness.tolist() == [0, 2]
    assert frame.item[0] is group
    assert list(PandasStorage().to_pandas().columns) == list(frame.columns)


# --- generated queries: both storages, and a model that reads dicts only

numbers = st.integers(-1, 6) | st.sampled_from([0.5, 2.0, 2**70])
tasks = st.sampled_from(["", "code", "math", "maths"])
statuses = st.sampled_from([*Status, *(status.value for status in Status)])
groups = st.sampled_from(GROUPS)
items = st.builds(item, groups, tasks, st.sampled_from(list(Status)), st.integers(-1, 4))


def equalities(values):
    some = st.lists(values, max_size=3)
    return values | st.one_of(
        st.fixed_dictionaries({"$eq": values}),
        st.fixed_dictionaries({"$ne": values}),
        st.fixed_dictionaries({"$in": some | some.map(tuple)}, optional={"$not_in": some}),
        st.fixed_dictionaries({"$not_in": some}),
    )


def orderings(values):
    pairs = st.tuples(values, values).map(sorted)
    bounds = {"$gt": values, "$gte": values, "$lt": values, "$lte": values, "$between": pairs}
    return st.fixed_dictionaries({}, optional=bounds).filter(bool)


conditions = st.one_of(
    st.dictionaries(
        st.sampled_from(["uid", "timestamp_id", "staleness"]),
        equalities(numbers) | orderings(numbers),
        max_size=2,
    ),
    st.fixed_dictionaries({"task_name": equalities(st.none() | tasks) | orderings(tasks)}),
    st.fixed_dictionaries({"status": equalities(statuses)}),
    st.fixed_dictionaries({"item": equalities(groups)}),
)
nodes = st.one_of(
    st.builds(ScalarNode, st.just("staleness"), st.sampled_from(["$gt", "$ne"]), numbers),
    st.builds(
        SetNode, st.just("status"), st.sampled_from(["$in", "$not_in"]), st.lists(statuses, max_size=2)
    ),
    st.builds(lambda low, more: BetweenNode("uid", low, low + more), st.integers(0, 3), st.integers(0, 3)),
    conditions.map(parse_query),
)
queries = st.recursive(
    conditions | nodes,
    lambda inner: st.one_of(
        st.fixed_dictionaries({"$and": st.lists(inner, max_size=3)}),
        st.fixed_dictionaries({"$or": st.lists(inner, max_size=3)}),
        st.fixed_dictionaries({"$not": inner, "staleness": numbers}),
        st.fixed_dictionaries({"$or": st.lists(inner, max_size=3)}).map(parse_query),
    ),
    max_leaves=5,
)

COMPARE = {
    "$eq": lambda a, b: a == b,
    "$ne": lambda a, b: a != b,
    "$gt": lambda a, b: a > b,
    "$gte": lambda a, b: a >= b,
    "$lt": lambda a, b: a < b,
    "$lte": lambda a, b: a <= b,
    "$in": lambda a, b: a in b,
    "$not_in": lambda a, b: a not in b,
    "$between": lambda a, b: b[0] <= a <= b[1],
}


def says(query, one):
    """Answer a query on one item, without looking at anything of ours but the shape of nodes."""
    if hasattr(query, "relation"):
        query = {query.relation: query.conditions[0] if query.relation == "$not" else query.conditions}
    elif hasattr(query, "lower"):
        query = {query.field: {"$between": [query.lower, query.upper]}}
    elif hasattr(query, "op"):
        query = {query.field: {query.op: query.value}}
    for key, value in query.items():
        if key in ("$and", "$or"):
            answer = (all if key == "$and" else any)(says(part, one) for part in value)
        elif key == "$not":
            answer = not says(value, one)
        else:
            tests = value if isinstance(value, dict) else {"$eq": value}
            answer = all(COMPARE[operator](getattr(one, key), operand) for operator, operand in tests.items())
        if not answer:
            return False
    return True


@given(st.lists(items, max_size=6), queries)
async def test_both_storages_agree_with_a_model_on_every_query(put, query):
    storages = [kind() for kind in KINDS]
    for storage in storages:
        for one in put:
            await storage.put(one)
    model = [replace(one, uid=uid, timestamp_id=uid) for uid, one in enumerate(put, start=1)]
    expected = [one for one in model if says(query, one)]
    for storage in storages:
        assert await storage.get(query) == expected
        assert await storage.count(query) == len(expected)


@given(st.lists(items.filter(lambda one: one.item), max_size=4), queries)
async def test_a_buffer_is_seen_as_a_storage_would_have_it(put, query):
    view, alone = NaiveStorage(), NaiveStorage()
    buffer = ReplayBuffer(policy=FIFOReplayPolicy(), storage_backend=view)
    for one in put:
        own = {"status": one.status, "seq_staleness": one.staleness}
        group, task_name = [member.model_copy(update=own) for member in one.item], one.task_name or "none"
        uid = await buffer.put(group, task_name)
        (row,) = await buffer.query({"uid": uid})
        await alone.put(replace(one, item=group, task_name=task_name, status=row.status))
    assert await view.get(query) == await alone.get(query)
    assert await view.count(query) == await alone.count(query)


# --- as the view of a buffer


class TestInABuffer:
    async def test_it_shows_and_deletes_groups(self):
        storage = PandasStorage()
        buffer = ReplayBuffer(policy=FIFOReplayPolicy(), storage_backend=storage)
        group = [state(1)]
        await buffer.put(group, "math")
        await buffer.put([state(2)], "code")
        (found,) = await storage.get({"task_name": "math"})
        assert found == StorageItem(group, 1, 1, "math", Status.COMPLETED, 0)
        assert await storage.count({"item": group}) == 1
        assert len(storage) == 2
        await storage.delete([1, 9])
        assert len(storage) == len(buffer) == 1
        assert (await buffer.ledger())["math"]["deleted"].groups == 1

    @pytest.mark.parametrize(
        ("verb", "instead"),
        [
            ("put", "put"),
            ("update", "patch"),
            ("state_dict", "save"),
            ("load_state_dict", "resume"),
            ("to_pandas", "to_pandas"),
        ],
    )
    async def test_what_the_buffer_does_is_left_to_it(self, verb, instead):
        storage = PandasStorage()
        ReplayBuffer(policy=FIFOReplayPolicy(), storage_backend=storage)
        arguments = [] if verb in ("state_dict", "to_pandas") else [[]]
        with pytest.raises(InvalidArgument, match=f"use the buffer's {instead}"):
            await getattr(storage, verb)(*arguments)

    async def test_a_storage_in_use_is_refused(self):
        used, shown = NaiveStorage(), NaiveStorage()
        await used.put(item())
        ReplayBuffer(policy=FIFOReplayPolicy(), storage_backend=shown)
        for storage in (used, shown):
            with pytest.raises(InvalidArgument, match="already in use"):
                ReplayBuffer(policy=FIFOReplayPolicy(), storage_backend=storage)
        assert len(used) == 1

    async def test_a_buffer_that_cannot_be_made_leaves_the_storage_free(self):
        storage = NaiveStorage()
        with pytest.raises(ValueError, match="capacity"):
            ReplayBuffer(policy=FIFOReplayPolicy(), storage_backend=storage, capacity=0)
        assert await storage.put(item()) == 1


def test_a_storage_of_ones_own_is_pointed_to_the_extension_points():
    for parent in (StorageBackend, NaiveStorage):
        with pytest.raises(
            TypeError, match=r"Mine: .*store=.*CONTRIBUTING\.md.*reroll\.testing\.BufferSuite"
        ):
            type("Mine", (parent,), {})
