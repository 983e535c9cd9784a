"""Hypothesis strategies for the configurations of buffers whose samplers leave nothing to chance."""

import warnings

from hypothesis import strategies as st

from reroll import (
    Fifo,
    Freshest,
    InvalidConfig,
    LeastUsed,
    Lifo,
    MaxHeap,
    MinHeap,
    MinSize,
    Queue,
    ReplayBufferConfig,
    SampleToInsertRatio,
    Stalest,
    TaskConfig,
    Unlimited,
)

TASKS = ("a", "b")
SELECTORS = st.sampled_from([Fifo(), Lifo(), Stalest(), Freshest(), MinHeap(), MaxHeap(), LeastUsed()])
LIMITERS = st.one_of(
    st.sampled_from([Unlimited(), Queue(1), Queue(3), SampleToInsertRatio(2.0, 2, 2.0)]),
    st.sampled_from([SampleToInsertRatio(1.0, 1, (0.0, 2.0)), SampleToInsertRatio(1.0, 2, 1.5)]),
    st.builds(MinSize, st.integers(1, 3)),
)


def proceeds(config: TaskConfig) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            ReplayBufferConfig(tasks={"t": config}).build()
        except InvalidConfig:
            return False
    return True


@st.composite
def task_configs(draw: st.DrawFn) -> TaskConfig:
    config = TaskConfig(
        capacity=draw(st.none() | st.integers(1, 4)),
        sampler=draw(SELECTORS),
        remover=draw(st.none() | SELECTORS),
        expire=draw(st.sampled_from(["group", "member"])),
        on_failed=draw(st.sampled_from(["group", "drop_member"])),
        min_group_size=draw(st.integers(1, 2)),
        max_attempts=draw(st.sampled_from([None, None, 1, 2])),
        max_staleness=draw(st.sampled_from([None, None, 0, 2])),
        on_stale=draw(st.sampled_from(["reroll", "drop"])),
        rejected_capacity=draw(st.sampled_from([1024, 2, 1, 0])),
    )
    limited = config.model_copy(update={"rate_limiter": draw(st.none() | LIMITERS)})
    return limited if proceeds(limited) else config


@st.composite
def buffer_configs(draw: st.DrawFn) -> ReplayBufferConfig:
    """Return configurations that proceed; each task has its own."""
    return ReplayBufferConfig(tasks={task: draw(task_configs()) for task in TASKS})


@st.composite
def crowded_configs(draw: st.DrawFn) -> ReplayBufferConfig:
    """Return configurations where both sides have to wait for each other."""
    narrow = [
        {"capacity": 1},
        {"capacity": 2},
        {"rate_limiter": Queue(1)},
        {"rate_limiter": Queue(2)},
        {"rate_limiter": SampleToInsertRatio(1.0, 1, (0.0, 2.0))},
    ]
    return ReplayBufferConfig(
        sampler="fifo", tasks={task: TaskConfig(**draw(st.sampled_from(narrow))) for task in TASKS}
    )
