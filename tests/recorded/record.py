"""Record the results of this version: 12,500 calls of each configuration, in `recorded.json`."""

import asyncio
import json
import tempfile
from pathlib import Path

from recorded.calls import CONFIGS, digests

CALLS = 12_500


async def main() -> None:
    found = {}
    for name in CONFIGS:
        with tempfile.TemporaryDirectory() as directory:
            found[name] = await digests(name, Path(directory), CALLS)
        print(f"{name}: {CALLS} calls")  # noqa: T201  (a program)
    Path(__file__).with_name("recorded.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
