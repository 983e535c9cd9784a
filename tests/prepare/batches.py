"""Groups to prepare: by hand, and generated ones in which every token id occurs once, so that each can be traced."""

import itertools

import numpy as np
from hypothesis import strategies as st

from reroll import Rollout, Sample, SampleInfo


def rollout(prompt=3, response=4, reward=0.0, **fields):
    """Return a finished rollout; lengths stand for tokens that do not matter."""
    prompt = list(range(100, 100 + prompt)) if isinstance(prompt, int) else prompt
    response = list(range(200, 200 + response)) if isinstance(response, int) else response
    given = {"status": "completed", "finish_reason": "stop", "group_id": "p"} | fields
    return Rollout(prompt_ids=prompt, response_ids=response, reward=reward, **given)


def sampled(group, uid=1, *, weight=1.0, times_sampled=1, staleness=0):
    return Sample(group, SampleInfo(uid, 1.0, 1.0, weight, times_sampled, staleness, 10))


def group_of(rewards, lengths=None, **fields):
    """Return a group with these rewards, and responses of these lengths."""
    lengths = lengths or [4] * len(rewards)
    return [rollout(3, length, reward, **fields) for length, reward in zip(lengths, rewards, strict=True)]


def _logprobs(count):
    number = st.floats(-20, 0, width=32) | st.just(float("nan")) | st.just(float("-inf"))
    return st.none() | st.lists(number, min_size=count, max_size=count)


def _versions(count):
    return st.just([]) | st.lists(st.integers(0, 5), min_size=count, max_size=count)


@st.composite
def samples(draw, max_groups=6, max_members=4):
    """Groups of different sizes, with and without masks, log-probs and versions, truncated and empty responses."""
    ids = itertools.count(1000)
    found = []
    for uid in range(1, 1 + draw(st.integers(0, max_groups))):
        prompt = [next(ids) for _ in range(draw(st.integers(0, 5)))]
        group = []
        for _ in range(draw(st.integers(1, max_members))):
            count = draw(st.integers(0, 9))
            group.append(
                rollout(
                    # A prompt is shared, but ids tell whose copy it is.
                    [next(ids) for _ in prompt],
                    [next(ids) for _ in range(count)],
                    draw(st.sampled_from((0.0, 0.5, 1.0))),
                    group_id=f"p{uid}",
                    logprobs=draw(_logprobs(count)),
                    response_mask=draw(
                        st.none() | st.lists(st.integers(0, 1), min_size=count, max_size=count)
                    ),
                    response_model_steps=draw(_versions(count)),
                    finish_reason=draw(st.sampled_from(("stop", "length"))),
                )
            )
        weight = draw(st.floats(0.1, 1.0))
        found.append(sampled(group, uid, weight=weight, times_sampled=draw(st.integers(1, 3))))
    return found


def expected_tokens(drawn, advantages, *, mask_truncated=False, use_weights=False, keep=None):
    """Return what is to be found at each token id, by a plain loop: the oracle of every packing."""
    found = {}
    row = 0
    for number, (group, info) in enumerate(drawn):
        for member in group:
            prompt, response = member.prompt_ids.tolist(), member.response_ids.tolist()
            is_masked = mask_truncated and member.finish_reason == "length"
            for position, token in enumerate((prompt + response)[:keep]):
                place = position - len(prompt)
                in_response = place >= 0
                mask = member.response_mask
                logprob = (
                    None if member.logprobs is None or not in_response else float(member.logprobs[place])
                )
                has_logprob = logprob is not None and np.isfinite(logprob)
                versions = member.response_model_steps
                found[token] = (
                    position,
                    in_response and not is_masked and (mask is None or bool(mask[place])),
                    logprob if has_logprob else 0.0,
                    has_logprob,
                    np.float32(advantages[row]),
                    info.weight if use_weights else 1.0,
                    versions[place] if in_response and versions else -1,
                    row,
                    number,
                )
            row += 1
    return found


def found_tokens(batches):
    """Return the same as it is in batches; a token that is there twice is an error."""
    found = {}
    for batch in batches:
        columns = batch.arrays()
        for place in range(batch.num_tokens):
            document = int(columns["document_ids"][place])
            sequence = int(batch.sequence[document])
            if sequence < 0:
                assert not columns["response_mask"][place]
                assert not columns["logprob_mask"][place]
                assert columns["weights"][place] == columns["advantages"][place] == 0
                continue
            token = int(columns["input_ids"][place])
            assert token not in found, "a token was doubled"
            found[token] = (
                int(columns["position_ids"][place]),
                bool(columns["response_mask"][place]),
                float(columns["logprobs"][place]),
                bool(columns["logprob_mask"][place]),
                columns["advantages"][place],
                columns["weights"][place],
                int(columns["versions"][place]),
                sequence,
                int(batch.group[document]),
            )
    return found


def assert_same_tokens(found, expected, *, weight_scale=1.0):
    assert found.keys() == expected.keys()
    for token, want in expected.items():
        have = list(found[token])
        assert np.isclose(have.pop(5), want[5] * weight_scale, rtol=1e-6)
        assert have == [*want[:5], *want[6:]], f"token {token}"
