"""Tests of `reroll.telemetry`."""
