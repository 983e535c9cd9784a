"""Fit the models of engines, lengths and trainer to the trace of a real run."""

import math
from statistics import fmean, median, stdev
from typing import Any, Final, NamedTuple

import numpy as np

from reroll.errors import InvalidConfig
from reroll.simulate.trace import Trace

_HELD_OUT: Final = 5  # every fifth line is not fitted, and tells the error
_FEWEST: Final = 10


class Fit(NamedTuple):
    """Fitted parameters, and the mean relative error on lines that were not fitted."""

    parameters: dict[str, Any]
    """A part of a scenario: `engines`, `lengths`, `trainer`."""
    engine_error: float | None
    trainer_error: float | None


def calibrate(trace: Trace) -> Fit:
    """Fit engines, lengths and trainer.

    A response of n tokens among k running ones takes `n * (1 + k / half_speed_at) / tokens_per_s` seconds, a step of n
    tokens `seconds_per_step + n * seconds_per_token`: both are linear, and fitted by least squares of relative errors.

    Raises:
        InvalidConfig: the trace has fewer than ten responses and fewer than ten steps.

    """
    parameters: dict[str, Any] = {}
    engine_error = trainer_error = None
    responses = [one for one in trace.responses if one[0] > 0]
    timed = [one for one in responses if one[1] > 0]
    if len(timed) >= _FEWEST:
        tokens, seconds, running = (np.array(column, float) for column in zip(*timed, strict=True))
        (base, slope), engine_error = _fit(np.stack([tokens, tokens * running], axis=1), seconds)
        parameters["engines"] = {
            "tokens_per_s": 1 / max(base, 1e-12),
            "half_speed_at": base / slope if slope > 0 and base > 0 else 1e9,
        }
    if len(responses) >= _FEWEST:
        logs = [math.log(one[0]) for one in responses]
        parameters["lengths"] = {
            "median": median(one[0] for one in responses),
            "sigma": stdev(logs),
            "cap": max(one[0] for one in responses),
        }
    if len(trace.steps) >= _FEWEST:
        tokens, seconds = (np.array(column, float) for column in zip(*trace.steps, strict=True))
        (base, slope), trainer_error = _fit(np.stack([np.ones_like(tokens), tokens], axis=1), seconds)
        parameters["trainer"] = {"seconds_per_step": max(0.0, base), "seconds_per_token": max(0.0, slope)}
    if not parameters:
        raise InvalidConfig(
            f"the trace has {len(trace.responses)} responses and {len(trace.steps)} steps; a fit needs {_FEWEST} of a kind"
        )
    return Fit(parameters, engine_error, trainer_error)


def _fit(columns: Any, seconds: Any) -> tuple[tuple[float, float], float]:
    """Return the two factors, and the mean relative error of the lines that were held out."""
    held = np.arange(len(seconds)) % _HELD_OUT == 0
    weights = 1 / seconds[~held]
    factors, *_ = np.linalg.lstsq(columns[~held] * weights[:, None], seconds[~held] * weights, rcond=None)
    if factors.min() < 0:  # the other column explains all
        one = int(factors.argmax())
        factors = np.zeros(2)
        factors[one] = fmean(seconds[~held] / columns[~held][:, one])
    errors = np.abs(columns[held] @ factors - seconds[held]) / seconds[held]
    return (float(factors[0]), float(factors[1])), float(errors.mean())
