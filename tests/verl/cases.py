"""Random calls of TransferQueue's public functions, and what they return, as plain values."""

import random

import numpy as np
import torch
import transfer_queue as tq
from tensordict import NonTensorStack, TensorDict

FORMS = ("dense", "flat", "jagged", "ragged", "long", "bf16", "bool", "text", "dict", "array", "mixed")


def column(chance, form, n):
    match form:
        case "dense":
            return torch.tensor([[chance.random() for _ in range(3)] for _ in range(n)])
        case "flat":
            return torch.tensor([chance.random() for _ in range(n)])
        case "jagged":
            rows = [torch.arange(chance.randint(1, 6)) + chance.randint(0, 99) for _ in range(n)]
            return torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        case "ragged":
            rows = [torch.rand(chance.randint(1, 3), chance.randint(1, 3)) for _ in range(n)]
            return torch.nested.as_nested_tensor(rows, layout=torch.strided)
        case "long":
            return torch.nested.as_nested_tensor(
                [torch.rand(chance.randint(1, 4), 5) for _ in range(n)], layout=torch.jagged
            )
        case "bf16":
            return torch.rand(n, 2, 2).to(torch.bfloat16)
        case "bool":
            return torch.rand(n, 4) < 0.5
        case "text":
            return NonTensorStack(*[f"text {chance.random()}" for _ in range(n)])
        case "dict":
            return NonTensorStack(*[{"a": chance.random(), "b": [1, None, {"c": "x"}]} for _ in range(n)])
        case "array":
            return NonTensorStack(*[np.arange(chance.randint(0, 4)) for _ in range(n)])
        case "mixed":
            return NonTensorStack(*[chance.choice([None, 1, 2.5, "x", [1, 2]]) for _ in range(n)])


def plain(value):
    """Return a value as lists, with its dtype and layout."""
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            return [str(value.dtype), str(value.layout), [plain(row) for row in value.unbind()]]
        return [str(value.dtype), tuple(value.shape), value.tolist()]
    if isinstance(value, np.ndarray):
        return ["array", str(value.dtype), value.tolist()]
    return value


def plain_batch(batch):
    found = {}
    for name in sorted(batch.keys()):
        value = batch.get(name)
        found[name] = (
            plain(value) if isinstance(value, torch.Tensor) else [plain(item) for item in value.tolist()]
        )
    return found


def attempt(call, **arguments):
    """Return the outcome of a call; of an error its type only, since texts name units."""
    try:
        return call(**arguments)
    except Exception as error:  # noqa: BLE001
        return type(error).__name__


def run_case(seed):
    """Make calls in a partition of their own and return their outcomes."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    partition, keys, outcomes = f"case{seed}", [f"g{n}_0_0" for n in range(6)], []
    forms = {f"f{n}": form for n, form in enumerate(chance.sample(FORMS, 3))}
    for _ in range(6):
        some = chance.sample(keys, chance.randint(1, 6))
        names = chance.sample(sorted(forms), chance.randint(1, 3))
        match chance.choice(("put", "put", "put", "tag", "get", "get", "clear", "one")):
            case "put":
                fields = TensorDict(
                    {name: column(chance, forms[name], len(some)) for name in names}, batch_size=len(some)
                )
                tags = chance.choice([None, [{"n": chance.random(), "status": "ok"} for _ in some]])
                meta = attempt(tq.kv_batch_put, keys=some, partition_id=partition, fields=fields, tags=tags)
                outcomes.append(
                    meta if isinstance(meta, str) else [meta.keys, meta.tags, sorted(meta.fields)]
                )
            case "tag":
                tag = {"status": chance.choice("abc")}
                attempt(tq.kv_put, key=some[0], partition_id=partition, tag=tag)
            case "one":
                fields = {"f9": torch.tensor([chance.random()])}
                attempt(tq.kv_put, key=some[0], partition_id=partition, fields=fields, tag={"x": None})
            case "get":
                select = chance.choice([None, names, names[0]])
                got = attempt(tq.kv_batch_get, keys=some, partition_id=partition, select_fields=select)
                outcomes.append(got if isinstance(got, str) else plain_batch(got))
            case "clear":
                attempt(tq.kv_clear, keys=some, partition_id=partition)
        outcomes.append(tq.kv_list(partition))
    return outcomes


def all_rows(partitions):
    """Return everything that is there: tags by key, and each row's fields."""
    found = tq.kv_list() or {}
    rows = {}
    for partition in partitions:
        for key, tags in sorted(found.get(partition, {}).items()):
            got = attempt(tq.kv_batch_get, keys=[key], partition_id=partition)
            rows[partition, key] = tags, got if isinstance(got, str) else plain_batch(got)
    return rows
