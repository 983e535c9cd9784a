"""One contender in its own interpreter: it measures what it is told, by lines of JSON. It needs nothing of reroll.

    python worker.py MODULE                     a module of contenders/
    <- {"version": "11.0.0"}
    -> {"open": "cycle", "setting": {"rows": 10000}}     <- {"how": "..."}, or {"cannot": "..."}
    -> {"run": 5}                                        <- {"measured": {"us": 12.5}}
    -> {"close": "cycle"}                                <- {}

Whatever goes wrong is answered as {"failed": "why"}. A cell is a generator function of the module: it prepares, yields a
function that measures once, and tidies up; its docstring says how it measures. `CANNOT` says what a contender cannot do.
Contenders that are servers have clients, whose traffic is a cell too, and a docstring of how they do it.
With `--client`, the process is one of a contender's clients instead; see clients.py.
"""

import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import clients

Measure = Callable[[], dict[str, float]]


def serve(module: Any) -> None:
    # Libraries may print; the answers have the original stdout for themselves.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**message: Any) -> None:
        print(json.dumps(message), file=answers, flush=True)

    answer(version=module.version())
    cell: AbstractContextManager[Measure] | None = None
    measure: Measure
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "open" in request:
                name = request["open"]
                if name in module.CANNOT:
                    answer(cannot=module.CANNOT[name])
                    continue
                make, how = found(module, name)
                cell = contextmanager(make)(**request["setting"])
                measure = cell.__enter__()
                answer(how=how)
            elif "run" in request:
                answer(measured=measure())
            elif cell is not None:
                closing, cell = cell, None
                closing.__exit__(None, None, None)
                answer()
            else:
                answer()
        except Exception as error:  # noqa: BLE001  (whatever a peer raises, the others go on)
            traceback.print_exc()
            answer(failed=f"{type(error).__name__}: {error}"[:300])


def found(module: Any, name: str) -> tuple[Callable[..., Iterator[Measure]], str]:
    """Return what makes a cell, and how it measures: a function of the module, or traffic of its clients."""
    make = getattr(module, name, None)
    if make is None:
        return partial(getattr(clients, name), module), " ".join(module.Client.__doc__.split())
    return make, " ".join(make.__doc__.split())


def main() -> None:
    warnings.simplefilter("ignore")
    if find_spec("reroll"):  # its benchmarks; at the end, for one of them is named as Ray is
        sys.path.append(str(Path(__file__).resolve().parents[1]))
    name, *rest = sys.argv[1:]
    module = import_module(f"contenders.{name}")
    if rest[:1] == ["--client"]:
        clients.follow(module, *rest[1:])
    else:
        serve(module)


if __name__ == "__main__":
    main()
