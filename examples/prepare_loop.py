"""From generation results to the batches of each rank: the loop of a trainer, with a crash in the middle.

An engine answers prompts; a BlockingPreparer makes groups of the answers, leaves out those that teach nothing, and packs each step
for two ranks while the step before is trained. The first run ends after a step that made it into no checkpoint, with other
steps prepared and prompts on their way. The second goes on from the checkpoint: every prompt that passes is trained once.

    python examples/prepare_loop.py
"""

import json
import queue
import tempfile
import threading
from pathlib import Path

from reroll import SourceEnded
from reroll.prepare import (
    BlockingPreparer,
    GenerationResult,
    PrepareConfig,
    PromptCursor,
    PromptRequest,
    StepData,
)

PROMPTS, RESPONSES = 96, 4
BATCH, RANKS, PACK_LENGTH = 8, 2, 64
CRASH = 5  # the step that is trained, but makes it into no checkpoint


def answer(asked: PromptRequest) -> GenerationResult:
    """Stand in for an engine: of every fourth prompt all responses solve it, and nothing can be learned."""
    number = asked.prompt
    solved = RESPONSES if number % 4 == 0 else number % 4
    return GenerationResult(
        prompt_id=asked.prompt_id,
        index=asked.index,
        prompt_ids=[1, 2, 3, 4],
        responses=[[number] * (3 + (number + place) % 6) for place in range(RESPONSES)],
        finish_reasons=["stop"] * RESPONSES,
        rewards=[float(place < solved) for place in range(RESPONSES)],
        model_step=0,
    )


def generate(cursor: PromptCursor, results: queue.Queue) -> None:
    while asked := cursor.take(2):
        for one in reversed(asked):  # answers do not come in order
            results.put(answer(one))
    results.put(None)  # there are no more prompts


def train(parts: list[StepData]) -> list[int]:
    """Stand in for the ranks of a trainer; return which prompts they saw."""
    assert (
        len({len(part) for part in parts}) == 1
    )  # as many micro-batches on each: nobody waits in a collective
    micro_batches = [micro_batch for part in parts for micro_batch in part if not micro_batch.is_empty]
    assert (
        sum(micro.num_trainable_tokens for micro in micro_batches) == parts[0].batch.counts.trainable_tokens
    )
    return sorted({int(micro.input_ids[end - 1]) for micro in micro_batches for end in micro.cu_seqlens[1:]})


def run(directory: Path, checkpoint: dict | None, *, crashes: bool) -> dict:
    """Train until there are no more prompts, or until the crash; return the last checkpoint."""
    config = PrepareConfig(
        global_batch_size=BATCH,
        pack_length=PACK_LENGTH,
        num_ranks=RANKS,
        group_size=RESPONSES,
        filter_zero_std=True,
        replay_buffer={"store": directory / "buffer"},  # a crash loses no group
    )
    cursor = PromptCursor(range(1, PROMPTS + 1), epochs=1)
    results: queue.Queue = queue.Queue(maxsize=4)
    preparer = BlockingPreparer(config, results, prompts=cursor)
    step, trained = 0, []
    if checkpoint is not None:
        preparer.restore(checkpoint["preparer"])
        step, trained = checkpoint["preparer"]["step"], checkpoint["trained"]
    threading.Thread(target=generate, args=(cursor, results), daemon=True).start()
    with preparer:
        while True:
            step += 1
            try:
                parts = [preparer.get_data(rank, step, timeout=30) for rank in range(RANKS)]
            except SourceEnded:
                return checkpoint
            assert parts[0].metrics["train/groups"] == BATCH
            trained = trained + train(parts)
            print(f"step {step}: trained {BATCH} groups")
            if crashes and step == CRASH:
                return checkpoint
            state = preparer.state(step=step)
            checkpoint = json.loads(json.dumps({"preparer": state, "trained": trained}))
            preparer.commit(step)  # when it is on disk


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = run(Path(directory), None, crashes=True)
        print(f"crashed; the last checkpoint is that of step {checkpoint['preparer']['step']}")
        checkpoint = run(Path(directory), checkpoint, crashes=False)
    trained = checkpoint["trained"]
    expected = [number for number in range(1, PROMPTS + 1) if number % 4]
    print(f"{len(trained)} groups trained, of {len(set(trained))} prompts: each once")
    assert sorted(trained) == expected, "a prompt was skipped or doubled"
    print(f"{PROMPTS - len(expected)} prompts taught nothing, and were left out")


if __name__ == "__main__":
    main()
