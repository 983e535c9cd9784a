"""Two ranks by torchrun: groups that straddle them, one buffer, the same result on both."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from tiny import parameters
from tiny import prompts
from watched import run
where, options = Path(sys.argv[1]), json.loads(sys.argv[2])
trainer = run(where, data=prompts(48), **options)
rank = trainer.accelerator.process_index
(where / f"rank{rank}.json").write_text(json.dumps({
    "generated": trainer.generated,
    "trained": trainer.trained,
    "losses": trainer.losses,
    "weights": parameters(trainer).tolist(),
    "has_buffer": trainer.replay_buffer is not None,
}))
trainer.accelerator.end_training()
"""


def ranks(where, **options):
    """Train on two ranks, and return what each has seen."""
    where.mkdir(exist_ok=True)
    (where / "script.py").write_text(SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launch, str(where / "script.py"), str(where), json.dumps(options)],
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((where / f"rank{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize(
    "options",
    [
        {
            "num_generations": 4,
            "per_device_train_batch_size": 6,
            "replay_share": 0.5,
        },  # the middle one of three groups is on both
        {
            "num_generations": 4,
            "per_device_train_batch_size": 3,
            "gradient_accumulation_steps": 2,
            "beta": 0.1,
            "replay_share": 0.5,
        },
    ],
    ids=["straddling", "accumulated, with a reference"],
)
def test_groups_stay_whole_across_ranks(tmp_path, options):
    first, second = ranks(tmp_path / "run", max_steps=6, **options)
    assert first["weights"] == second["weights"]
    assert (first["has_buffer"], second["has_buffer"]) == (True, False)

    size, known, replayed, straddled = options["num_generations"], {}, 0, 0
    generations = zip(
        first["generated"], second["generated"], first["trained"], second["trained"], strict=True
    )
    for fresh_0, fresh_1, (trained_0, total_0), (trained_1, total_1) in generations:
        fresh, trained = fresh_0 + fresh_1, trained_0 + trained_1
        assert total_0 == total_1 == sum(sum(row["completion_mask"]) for row in trained)
        for at in range(0, len(fresh), size):
            group = trained[at : at + size]
            prompt = str(group[0]["prompt"])
            is_fresh = prompt == str(fresh[at]["prompt"])
            was = fresh[at : at + size] if is_fresh else known[prompt]
            replayed += not is_fresh
            straddled += not is_fresh and at < len(fresh_0) < at + size
            for row, before in zip(group, was, strict=True):
                for name in (
                    "prompt",
                    "completion_ids",
                    "completion_mask",
                    "advantages",
                    "ref_per_token_logps",
                ):
                    assert row.get(name) == before.get(name), name
                if not is_fresh:
                    assert row["old_per_token_logps"] == pytest.approx(before["expected_logprobs"], abs=1e-4)
        known |= {str(fresh[at]["prompt"]): fresh[at : at + size] for at in range(0, len(fresh), size)}
    assert replayed >= 2
    assert straddled >= 1

    generated = {
        str(row["prompt"]): step
        for one in (first, second)
        for step, rows in enumerate(one["generated"])
        for row in rows
    }
    for step, rows in first["losses"] + second["losses"]:
        for row in rows:
            assert (generated[str(row["prompt"])] == step) == all(ratio == 1.0 for ratio in row["ratio"])
