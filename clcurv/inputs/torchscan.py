"""What a torch pickle would build, told from its opcodes without building anything.

`torch.load(weights_only=True)` runs no foreign code, but it calls what torch itself allows with
whatever arguments the file gives: tensors larger than their storage, buffers of any length. So
the same opcodes are walked here first, with every value replaced by the little that matters of
it. A file in which some call or claim is out of bounds is never handed to torch.
"""

from __future__ import annotations

import pickletools
import re
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import torch

from clcurv.errors import CorruptFileError, UnsafeFileError

MAX_PICKLE = 128_000_000  # bytes of structure; tensors' values are not among them
MAX_DEPTH = 100  # tuples inside each other: hashing deeper ones overflows the C stack
_ROOM = 16_000_000

# Bytes that one object of Python takes at least.
_LIST, _DICT, _SET, _TUPLE, _CALL = 56, 64, 216, 48, 200

_SIZES = {
    **{"Double": 8, "Long": 8, "ComplexFloat": 8, "ComplexDouble": 16},
    **{"Float": 4, "Int": 4, "QInt32": 4, "Half": 2, "BFloat16": 2, "Short": 2},
    **{"Char": 1, "Byte": 1, "Bool": 1, "QInt8": 1, "QUInt8": 1, "QUInt4x2": 1, "QUInt2x4": 1},
    "Untyped": 1,
}
_STORAGE = re.compile(r"torch\.(?:cuda\.|storage\.)?([A-Z]\w*)Storage")
_REBUILD = "torch._utils._rebuild_"
# What a file may call, beside those that need a look at their arguments.
_HARMLESS_CALLS = frozenset(
    (
        *("collections.OrderedDict", "collections.Counter", "builtins.set", "builtins.complex"),
        *("torch.Size", "torch.device", "torch.serialization._get_layout"),
        *(_REBUILD + name for name in ("parameter", "parameter_with_state", "sparse_tensor")),
        _REBUILD + "meta_tensor_no_storage",
    )
)
# What it may name without calling it.
_VALUES = frozenset(("torch.Tensor", "torch.nn.parameter.Parameter"))
_ENCODINGS = frozenset(("latin1", "latin-1", "ascii", "utf-8", "utf8"))


@dataclass(frozen=True)
class Claims:
    """What a pickle asks for.

    Attributes:
        blocked: Names of code that is not to be run, as ``module.name``.
        storages: Key of a storage -> bytes it is said to have.
    """

    blocked: frozenset[str]
    storages: Mapping[str, int]


@dataclass(frozen=True)
class _Named:
    name: str


@dataclass(frozen=True)
class _Storage:
    nbytes: int
    itemsize: int


@dataclass(slots=True)
class _Container:
    n: int = 0
    keys: set[str] | None = None


@dataclass(frozen=True)
class _Tuple:
    items: tuple[Any, ...]
    depth: int


_OTHER, _BYTES = object(), object()


def scan(
    stream: IO[bytes], *, where: str, pickles: int = 1, also: frozenset[str] = frozenset()
) -> Claims:
    """Walk one or several pickles.

    Args:
        stream: At the beginning of the first; left behind the end of the last.
        where: The file's name, for messages.
        pickles: How many follow each other.
        also: Names that may be used and called beside torch's own.

    Raises:
        UnsafeFileError: A claim that the pickle itself shows to be false, or that would take
            memory out of proportion to its length.
        CorruptFileError: It does not end, or is no pickle.
    """
    machine = _Machine(where, also)
    try:
        for _ in range(pickles):
            machine.run(stream)
    except (UnsafeFileError, CorruptFileError):
        raise
    except Exception as error:
        # pickletools raises many classes on damaged input.
        raise CorruptFileError(
            f"{where} is damaged or cut short: its pickle cannot be followed",
            hint="copy or download it again",
        ) from error
    return Claims(frozenset(machine.blocked), machine.storages)


def is_known_value(name: str) -> bool:
    """Whether a name stands for a storage class, a dtype, a tensor class or the like."""
    if name in _VALUES or _STORAGE.fullmatch(name):
        return True
    root, _, attribute = name.rpartition(".")
    kinds = (torch.dtype, torch.qscheme)
    return root == "torch" and isinstance(getattr(torch, attribute, None), kinds)


@dataclass
class _Machine:
    where: str
    also: frozenset[str]
    blocked: set[str] = field(default_factory=set)
    storages: dict[str, int] = field(default_factory=dict)
    stack: list[Any] = field(default_factory=list)
    marks: list[list[Any]] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)
    cost: int = 0

    def run(self, stream: IO[bytes]) -> None:
        self.stack, self.marks, self.memo = [], [], {}
        begin = stream.tell()
        for opcode, argument, position in pickletools.genops(stream):
            act = _ACTS.get(opcode.name)
            if act is None:
                raise UnsafeFileError(
                    f"{self.where} was pickled with a protocol that cannot be read safely "
                    f"(it uses {opcode.name})",
                    hint="re-save it with torch.save and its default pickle protocol",
                )
            act(self, argument)
            length = (position or begin) - begin
            if length > MAX_PICKLE or self.cost > 8 * length + _ROOM:
                raise UnsafeFileError(
                    f"{self.where} describes more objects than weights need: it would fill the "
                    "memory"
                )

    def literal(self, argument: Any) -> None:
        self.stack.append(argument)

    def other(self, argument: Any) -> None:
        self.stack.append(_OTHER)

    def container(self, cost: int) -> None:
        self.cost += cost
        self.stack.append(_Container())

    def mark(self, argument: Any) -> None:
        self.marks.append(self.stack)
        self.stack = []

    def pop_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.marks.pop()
        return items

    def make_tuple(self, items: list[Any]) -> None:
        depth = 1 + max((i.depth for i in items if isinstance(i, _Tuple)), default=0)
        if depth > MAX_DEPTH:
            raise UnsafeFileError(
                f"{self.where} nests tuples more than {MAX_DEPTH} deep, to overflow the stack"
            )
        self.cost += _TUPLE
        self.stack.append(_Tuple(tuple(items), depth))

    def last(self, n: int) -> list[Any]:
        if len(self.stack) < n:
            raise IndexError
        items = self.stack[len(self.stack) - n :]
        del self.stack[len(self.stack) - n :]
        return items

    def grow(self, items: int, keys: Sequence[Any] = ()) -> None:
        """Items go into the container on top."""
        container = self.stack[-1]
        if not isinstance(container, _Container):
            return
        container.n += items
        if keys and container.keys is None:
            container.keys = set()
        for key in keys:
            if not isinstance(key, str) or container.keys is None:
                continue
            if key in container.keys:
                raise UnsafeFileError(
                    f"{self.where} names {key[:80]!r} twice in one mapping; its content is "
                    "ambiguous"
                )
            container.keys.add(key)

    def append(self, argument: Any) -> None:
        self.stack.pop()
        self.grow(1)

    def appends(self, argument: Any) -> None:
        self.grow(len(self.pop_mark()))

    def set_item(self, argument: Any) -> None:
        self.grow(1, self.last(2)[:1])

    def set_items(self, argument: Any) -> None:
        items = self.pop_mark()
        self.grow(len(items) // 2, items[::2])

    def get(self, index: int) -> None:
        self.stack.append(self.memo[index])

    def put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    # --- what would act ---

    def name(self, argument: str) -> None:
        module, _, attribute = argument.partition(" ")
        if (module, attribute) in NAME_MAPPING:
            module, attribute = NAME_MAPPING[(module, attribute)]
        else:
            module = IMPORT_MAPPING.get(module, module)
        name = f"{module}.{attribute}"
        if not (name in self.also or self.may_call(name) or is_known_value(name)):
            self.blocked.add(name)
        self.stack.append(_Named(name))

    def may_call(self, name: str) -> bool:
        return name in _HARMLESS_CALLS or name in _LOOKED_AT or name in self.also

    def reduce(self, argument: Any) -> None:
        function, arguments = self.last(2)
        self.stack.append(self.call(function, arguments))

    def build(self, argument: Any) -> None:
        state = self.stack.pop()
        parts = state.items if isinstance(state, _Tuple) else (state,)
        self.cost += sum(_length(part) for part in parts) * 8
        if not self.stack:
            raise IndexError

    def call(self, function: Any, arguments: Any) -> Any:
        """What a call gives; its name goes to the blocked ones where it is not allowed."""
        if not isinstance(function, _Named):
            raise UnsafeFileError(f"{self.where} calls an object that it makes itself")
        if not isinstance(arguments, _Tuple):
            raise CorruptFileError(f"{self.where} is damaged: a call without arguments")
        if not self.may_call(function.name):
            self.blocked.add(function.name)
            return _OTHER
        items = arguments.items
        self.cost += _CALL + 8 * sum(_length(item) for item in items)
        look = _LOOKED_AT.get(function.name)
        if look is not None:
            return look(self, items)
        return _Container(sum(_length(item) for item in items))

    def storage(self, argument: Any) -> None:
        claim = self.stack.pop()
        items = claim.items if isinstance(claim, _Tuple) else ()
        if len(items) > 1 and items[0] == "module" and isinstance(items[1], _Named):
            # How the older format names the class of a pickled module.
            self.blocked.add(items[1].name)
            self.stack.append(items[1])
            return
        if len(items) < 5 or items[0] != "storage" or not isinstance(items[1], _Named):
            raise CorruptFileError(f"{self.where} is damaged: a storage is not described")
        _, kind, key, _, numel, *view = items
        named = _STORAGE.fullmatch(kind.name)
        if named is None or not isinstance(numel, int) or not isinstance(key, int | str):
            raise CorruptFileError(f"{self.where} is damaged: a storage is not described")
        if numel < 0:
            raise UnsafeFileError(f"{self.where} claims a storage of {numel:,} elements")
        itemsize = _SIZES.get(named[1], 16)
        nbytes = numel * itemsize
        self.storages[str(key)] = max(nbytes, self.storages.get(str(key), 0))
        if view and isinstance(view[0], _Tuple):
            nbytes = self.view(view[0].items, nbytes, itemsize)
        self.stack.append(_Storage(nbytes, itemsize))

    def view(self, described: tuple[Any, ...], nbytes: int, itemsize: int) -> int:
        """Bytes of a part of a storage, as files of the older format have them."""
        _, offset, length = described
        if not (offset >= 0 and length >= 0 and (offset + length) * itemsize <= nbytes):
            raise UnsafeFileError(f"{self.where} claims a view beyond the end of its storage")
        return int(length * itemsize)

    def tensor(self, items: tuple[Any, ...], *, dtype: Any = None) -> Any:
        storage, offset, size, stride = items[:4]
        if not (isinstance(storage, _Storage) and isinstance(offset, int)):
            raise CorruptFileError(f"{self.where} is damaged: a tensor without a storage")
        shape, steps = _whole_numbers(size), _whole_numbers(stride)
        if shape is None or steps is None or len(shape) != len(steps) or offset < 0:
            raise CorruptFileError(f"{self.where} is damaged: a tensor without a shape")
        itemsize = storage.itemsize if dtype is None else _itemsize(dtype)
        last = offset + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
        if 0 not in shape and (last + 1) * itemsize > storage.nbytes:
            raise UnsafeFileError(
                f"{self.where} claims a tensor of shape {list(shape)[:8]} in a storage of "
                f"{storage.nbytes:,} bytes"
            )
        return _OTHER

    def typed_tensor(self, items: tuple[Any, ...]) -> Any:
        return self.tensor(items, dtype=items[6])

    def subclass(self, items: tuple[Any, ...]) -> Any:
        """``_rebuild_from_type_v2(function, type, arguments, state)``."""
        return self.call(items[0], items[2])

    def encode(self, items: tuple[Any, ...]) -> Any:
        """How bytes are written: text and an encoding. Other codecs multiply what they get."""
        if len(items) != 2 or not isinstance(items[0], str) or items[1] not in _ENCODINGS:
            raise UnsafeFileError(f"{self.where} calls a codec that weights do not need")
        return _BYTES

    def bytearray_(self, items: tuple[Any, ...]) -> Any:
        if items and items[0] is not _BYTES and not isinstance(items[0], str):
            raise UnsafeFileError(f"{self.where} asks for a buffer of a length of its own choice")
        return _BYTES


def _length(value: Any) -> int:
    if isinstance(value, _Container):
        return value.n
    if isinstance(value, _Tuple):
        return len(value.items)
    return len(value) if isinstance(value, str) else 0


def _whole_numbers(value: Any) -> tuple[int, ...] | None:
    """Of a tuple of numbers that are not negative."""
    items = value.items if isinstance(value, _Tuple) else None
    if items is None or not all(isinstance(i, int) and i >= 0 for i in items):
        return None
    return items


def _itemsize(dtype: Any) -> int:
    name = dtype.name.rpartition(".")[2] if isinstance(dtype, _Named) else ""
    found = getattr(torch, name, None)
    return found.itemsize if isinstance(found, torch.dtype) else 16


_Look = Callable[[_Machine, tuple[Any, ...]], Any]
_LOOKED_AT: dict[str, _Look] = {
    **{_REBUILD + name: _Machine.tensor for name in ("tensor", "tensor_v2", "qtensor")},
    _REBUILD + "tensor_v3": _Machine.typed_tensor,
    "torch._tensor._rebuild_from_type_v2": _Machine.subclass,
    "_codecs.encode": _Machine.encode,
    "builtins.bytearray": _Machine.bytearray_,
}

_Act = Callable[[_Machine, Any], None]
_ACTS: dict[str, _Act] = {
    **dict.fromkeys(("PROTO", "STOP"), lambda machine, argument: None),
    **dict.fromkeys(
        ("BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINSTRING"),
        _Machine.literal,
    ),
    **dict.fromkeys(("NONE", "NEWTRUE", "NEWFALSE", "BINFLOAT"), _Machine.other),
    "EMPTY_LIST": lambda machine, argument: machine.container(_LIST),
    "EMPTY_DICT": lambda machine, argument: machine.container(_DICT),
    "EMPTY_SET": lambda machine, argument: machine.container(_SET),
    "EMPTY_TUPLE": lambda machine, argument: machine.make_tuple([]),
    "TUPLE1": lambda machine, argument: machine.make_tuple(machine.last(1)),
    "TUPLE2": lambda machine, argument: machine.make_tuple(machine.last(2)),
    "TUPLE3": lambda machine, argument: machine.make_tuple(machine.last(3)),
    "TUPLE": lambda machine, argument: machine.make_tuple(machine.pop_mark()),
    "MARK": _Machine.mark,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    **dict.fromkeys(("BINGET", "LONG_BINGET"), _Machine.get),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _Machine.put),
    "GLOBAL": _Machine.name,
    **dict.fromkeys(("REDUCE", "NEWOBJ"), _Machine.reduce),
    "BUILD": _Machine.build,
    "BINPERSID": _Machine.storage,
}
