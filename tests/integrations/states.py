"""Rollouts for the tests: RolloutStates, as an engine would return them."""

from reroll.integrations.xtuner import RolloutState


def state(number=1, status="completed", **fields):
    """Return a response of two tokens to a prompt of two."""
    given = {
        "rollout_id": number,
        "group_id": number,
        "message": [{"role": "user", "content": f"prompt {number}"}],
        "prompt_ids": [number, 1000 + number],
        "tokens": [number, 1000 + number],
        "response": f"response {number}",
        "response_ids": [10 * number, 10 * number + 1],
        "logprobs": [-0.1, -0.2],
        "response_mask": [1, 1],
        "finish_reason": "stop",
        "reward": {"score": 1.0},
        "status": status,
    }
    return RolloutState(**given | fields)


def numbers(groups):
    """Return the number of the first rollout of each group."""
    return [group[0].rollout_id for group in groups]
