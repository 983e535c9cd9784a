"""torch tensors, where torch is installed."""

import subprocess
import sys

import pytest

from codec.exactness import back
from codec.test_hostile import body_of, sealed_body
from reroll import CorruptData, NotStorable, Rollout, UnsupportedFormat
from reroll.codec import decode, encode
from reroll.codec.frame import Code

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import reroll
from reroll.codec import decode
try:
    decode(bytes.fromhex(sys.argv[1]))
except reroll.UnsupportedFormat as error:
    print(error)
"""


def tensor_blob(content=bytes(8), name="float32", shape=(2,), requires_grad=False):
    """Return a blob with a tensor, made without torch."""
    import msgspec  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    written = msgspec.msgpack.encode([0, name, list(shape), requires_grad])
    return sealed_body((0, msgspec.msgpack.Ext(Code.TENSOR, written)), [np.frombuffer(content, np.uint8)])


def test_reading_without_torch_names_the_remedy():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, tensor_blob().hex()],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "pip install 'reroll[torch]'" in done.stdout


torch = pytest.importorskip("torch")


def assert_same(a, b):
    assert type(a) is type(b) is torch.Tensor
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    assert a.requires_grad == b.requires_grad
    if a.numel():
        flat = [
            each.detach()
            .resolve_conj()
            .resolve_neg()
            .reshape(-1)
            .clone(memory_format=torch.contiguous_format)
            for each in (a, b)
        ]
        assert flat[0].view(torch.uint8).equal(flat[1].view(torch.uint8))


DTYPES = [
    getattr(torch, name)
    for name in (
        *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
        *(
            "float16",
            "bfloat16",
            "float32",
            "float64",
            "complex64",
            "complex128",
            "float8_e4m3fn",
            "float8_e5m2",
        ),
    )
    if hasattr(torch, name)
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 3), (1, 1, 1, 1)], ids=str)
def test_any_dtype_and_shape(dtype, shape):
    tensor = torch.randint(0, 2, shape).to(dtype)
    assert_same(back(tensor), tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        *(torch.arange(12).reshape(3, 4).T, torch.arange(12)[::3], torch.ones(1).expand(5)),
        *(torch.tensor([1 + 2j]).conj(), torch.tensor([1 + 2j]).conj().imag),
        *(
            torch.tensor([float("nan"), -0.0]),
            torch.ones(2, requires_grad=True),
            torch.ones(2, requires_grad=True) * 2,
        ),
        torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
    ],
    ids=lambda tensor: f"{tensor.dtype}{tuple(tensor.shape)}",
)
def test_any_layout(tensor):
    assert_same(back([tensor])[0], tensor)


def test_tensors_are_copies_that_may_be_written():
    blob = encode(torch.arange(5))
    first, second = decode(blob), decode(blob)
    first += 1
    assert second.tolist() == [0, 1, 2, 3, 4]
    assert decode(blob).tolist() == [0, 1, 2, 3, 4]


def test_a_shared_tensor_stays_shared():
    tensor = torch.zeros(1000)
    blob = encode([Rollout(mm_info={"pixels": tensor}) for _ in range(4)])
    restored = decode(blob)
    assert len(blob) < 2 * 4000
    assert all(member.mm_info["pixels"] is restored[0].mm_info["pixels"] for member in restored)


@pytest.mark.parametrize(
    "tensor",
    [torch.ones(3).to_sparse(), torch.empty(3, device="meta"), torch.nn.Parameter(torch.ones(2))],
    ids=["sparse", "meta", "parameter"],
)
def test_what_is_no_dense_tensor_is_refused(tensor):
    with pytest.raises(NotStorable, match=r"^value\[0\]: "):
        encode([tensor])


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "save"},
        {"name": "nn"},
        {"name": "float128"},
        {"name": ["float32"]},
        {"shape": (3,)},
        {"shape": (-2, -1)},
        {"shape": (2**40, 2**40)},
        {"shape": (2.0,)},
        {"requires_grad": 1},
        {"name": "int32", "requires_grad": True},
    ],
    ids=repr,
)
def test_hostile_tensors(changes):
    with pytest.raises((CorruptData, UnsupportedFormat)):
        decode(tensor_blob(**changes))


def test_the_blob_of_these_tests_is_the_real_one():
    assert decode(tensor_blob()).tolist() == [0, 0]
    assert body_of(tensor_blob()) == body_of(encode(torch.zeros(2)))
