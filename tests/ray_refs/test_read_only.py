"""What references stand for, for whoever only looks."""

import asyncio
import subprocess
import sys
from pathlib import Path

import numpy as np
import ray

from reroll import ReplayBufferConfig, Rollout, open_readonly

SRC = Path(__file__).parents[2] / "src"

WITHOUT_RAY = """
import sys
sys.modules["ray"] = None
from reroll import open_readonly
with open_readonly(sys.argv[1]) as seen:
    print([rollout.mm_info["pixels"].tolist() for group in seen.peek([1, 2]) for rollout in group])
"""


async def test_they_are_the_objects_and_need_no_ray(tmp_path):
    image = ray.put(np.arange(3))
    buffer = ReplayBufferConfig(store=tmp_path).build()
    rollouts = [Rollout(status="completed", response_ids=[1], mm_info={"pixels": image}) for _ in range(3)]
    await buffer.put(rollouts[:2], "math")
    await buffer.put(rollouts[2:], "math")
    with open_readonly(tmp_path) as seen:
        (one, two), (three,) = seen.peek([1, 2])
        assert one.mm_info["pixels"] is two.mm_info["pixels"] is three.mm_info["pixels"]
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", WITHOUT_RAY, str(tmp_path)],
        env={"PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[[0, 1, 2], [0, 1, 2], [0, 1, 2]]\n"
    await buffer.close()
