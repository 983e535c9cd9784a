"""Simulate a run before paying for it: the real buffer, with models of engines and trainer, in virtual time."""

from reroll.simulate.calibration import Fit, calibrate
from reroll.simulate.report import run_report, sweep_report
from reroll.simulate.result import Point, Result
from reroll.simulate.run import simulate
from reroll.simulate.scenario import (
    Delay,
    EngineModel,
    GroupModel,
    Lengths,
    Scenario,
    TrainerModel,
)
from reroll.simulate.sweep import Trial, combinations, parse_sweep, run_sweep
from reroll.simulate.trace import Trace, read_trace

__all__ = [
    "Delay",
    "EngineModel",
    "Fit",
    "GroupModel",
    "Lengths",
    "Point",
    "Result",
    "Scenario",
    "Trace",
    "TrainerModel",
    "Trial",
    "calibrate",
    "combinations",
    "parse_sweep",
    "read_trace",
    "run_report",
    "run_sweep",
    "simulate",
    "sweep_report",
]
