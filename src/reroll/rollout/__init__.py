"""What a rollout is: its status, its policy versions, and the rules of staleness, expiry and reset."""

from reroll.rollout.status import Status

__all__ = ["Status"]
