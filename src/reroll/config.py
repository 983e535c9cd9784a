"""ReplayBufferConfig: what a buffer or a table is made from; from code, a dict, YAML or TOML."""

import tomllib
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)

from reroll.engine.limiters import LIMITERS, Limiter, MinSize, limiter_of, limiter_options
from reroll.engine.selectors.selector import SelectorSpec
from reroll.engine.selectors.specs import SELECTORS, Uniform, selector_spec, spec_options
from reroll.errors import InvalidArgument, InvalidConfig
from reroll.table import Table


def _named(names: list[str]) -> WithJsonSchema:
    options = {"type": "object", "properties": {"type": {"enum": names}}, "required": ["type"]}
    return WithJsonSchema({"anyOf": [{"enum": names}, options]})


# In files a selector or limiter is its name, or a mapping of `type` and options.
_Selector = Annotated[
    Any, BeforeValidator(selector_spec), PlainSerializer(spec_options), _named(list(SELECTORS))
]
_Limiter = Annotated[
    Any, BeforeValidator(limiter_of), PlainSerializer(limiter_options), _named(list(LIMITERS))
]
_Count = Annotated[int, Field(ge=1)]


class ReplayBufferConfig(BaseModel):
    """How a buffer keeps, hands out and evicts groups. Unknown keys are refused.

    Attributes:
        capacity: how many groups fit; None: for a table, one global batch.
        sampler: who is handed out next: a selector, or its name.
        remover: who is evicted from a full buffer; None: nobody, inserts wait for room, so that nothing untrained is
            dropped.
        max_times_sampled: a group leaves after so many samples; None: never.
        min_size: samples wait until so many groups are there; None: for a table, one global batch.
        rate_limiter: when inserts and samples have to wait; it takes the place of `min_size`.
        seed: the same seed and the same calls give the same samples; None: random.

    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    capacity: _Count | None = None
    sampler: _Selector = Uniform()
    remover: _Selector | None = None
    max_times_sampled: _Count | None = 1
    min_size: _Count | None = None
    rate_limiter: _Limiter | None = None
    seed: int | None = None

    @model_validator(mode="after")
    def _one_limiter(self) -> Self:
        if self.min_size is not None and self.rate_limiter is not None:
            raise InvalidConfig(
                "give min_size or rate_limiter, not both: every rate limiter has a min_size of its own"
            )
        return self

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> Self:
        """Return the configuration in a .yaml, .yml, .toml or .json file.

        Raises InvalidConfig for another ending, pydantic.ValidationError (a ValueError) for wrong contents.
        """
        path = Path(path)
        match path.suffix:
            case ".toml":
                return cls.model_validate(tomllib.loads(path.read_text()))
            case ".json":
                return cls.model_validate_json(path.read_text())
            case ".yaml" | ".yml":
                try:
                    import yaml  # noqa: PLC0415  (optional)
                except ImportError as error:
                    raise ImportError("reading YAML needs PyYAML: pip install 'reroll[cli]'") from error
                return cls.model_validate(yaml.safe_load(path.read_text()) or {})
        raise InvalidConfig(f"{path.name}: the ending must be .yaml, .yml, .toml or .json")

    def build_table(self, global_batch_size: int) -> Table:
        """Return a table whose capacity and min_size are one global batch, unless configured.

        The default is a plain batch queue: a batch is sampled when it is complete, each item once, and inserts wait
        for room. Raises InvalidConfig for what can never proceed.
        """
        if (
            not isinstance(global_batch_size, int)
            or isinstance(global_batch_size, bool)
            or global_batch_size < 1
        ):
            raise InvalidArgument(
                f"global_batch_size must be a whole number of at least 1, not {global_batch_size!r}"
            )
        limiter: Limiter = self.rate_limiter or MinSize(self.min_size or global_batch_size)
        sampler: SelectorSpec = self.sampler
        return Table(
            self.capacity or global_batch_size,
            sampler,
            self.remover,
            self.max_times_sampled,
            limiter,
            seed=self.seed,
        )
