"""Where those go who extended xtuner's policies and storages: these decide nothing here, and are not to be subclassed."""

from typing import Any, ClassVar

_OURS = __name__.rpartition(".")[0] + "."


class NotExtended:
    """A class whose subclasses are all here. Others are refused by TypeError, with what to do instead."""

    extend_instead: ClassVar[str]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not cls.__module__.startswith(_OURS):
            raise TypeError(f"{cls.__qualname__}: {cls.extend_instead}")
