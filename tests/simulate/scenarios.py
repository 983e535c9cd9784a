"""Scenarios that take a moment."""

from typing import Any

from reroll.simulate import Scenario


def window(ahead: float, batch: int, sync_interval: int = 1, **options: Any) -> dict[str, Any]:
    """The options of a buffer that admits producers by a window."""
    limiter = {"type": "staleness_window", "max_staleness": ahead, "batch": batch}
    if "stragglers" in options:
        limiter["stragglers"] = options.pop("stragglers")
    return {"sampler": "stalest", "rate_limiter": {**limiter, "sync_interval": sync_interval}, **options}


def small(**changes: Any) -> Scenario:
    """Return a run of 30 steps of 8 groups with 4 members; `changes` replace parts of it."""
    parts: dict[str, Any] = {
        "buffer": window(1, 8),
        "engines": {"count": 2, "tokens_per_s": 100, "half_speed_at": 16, "max_running": 64},
        "lengths": {"median": 400, "sigma": 0.7, "cap": 3000},
        "group": {"members": 4, "prompt_tokens": 100},
        "trainer": {"batch": 8, "seconds_per_step": 5, "sync_s": 0.5},
        "steps": 30,
        "warm_up": 5,
    }
    for name, value in changes.items():
        parts[name] = {**parts[name], **value} if isinstance(value, dict) and name != "buffer" else value
    return Scenario.of(parts)
