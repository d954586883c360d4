"""Readers of the two published binary formats; plain bytes in, arrays out, never pickle."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["parse_cifar10", "parse_idx", "read_cifar10_archive", "read_idx_gz"]

_CIFAR_ROW = 1 + 3 * 32 * 32
_CIFAR_TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
_CIFAR_TEST = ("test_batch.bin",)


def parse_idx(data: bytes) -> NDArray[np.uint8]:
    """Return the unsigned bytes of an IDX file (the format of MNIST) in the shape that its header gives.

    The header is two zero bytes, the type (0x08: unsigned byte), the number of axes, then each axis as a
    big-endian 32-bit number. Raises ValueError where the header or the length is wrong.
    """
    if len(data) < 4 or data[0] != 0 or data[1] != 0:
        raise ValueError("not an IDX file: it does not start with two zero bytes")
    if data[2] != 0x08:
        raise ValueError(f"IDX type 0x{data[2]:02x}; only 0x08 (unsigned bytes) is read")
    start = 4 + 4 * data[3]
    if data[3] == 0 or len(data) < start:
        raise ValueError(f"IDX header of {data[3]} axes is cut short")
    shape = tuple(int(v) for v in np.frombuffer(data[4:start], dtype=">u4"))
    size = 1
    for axis in shape:
        size *= axis
    if len(data) - start != size:
        raise ValueError(f"IDX shape {shape} needs {size} bytes; the file has {len(data) - start}")
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)


def parse_cifar10(data: bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return images ``[n, 32, 32, 3]`` and labels ``[n]`` of one file of CIFAR-10's binary version.

    A row is one label byte and 3,072 pixels: the red plane, the green, the blue. Raises ValueError where the
    length or a label is wrong.
    """
    if not data or len(data) % _CIFAR_ROW:
        raise ValueError(f"{len(data)} bytes are not rows of {_CIFAR_ROW} (CIFAR-10, binary version)")
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, _CIFAR_ROW)
    labels = rows[:, 0].copy()
    if labels.max() > 9:
        raise ValueError(f"label {labels.max()} in a CIFAR-10 file; allowed: 0..9")
    images = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), labels


def read_idx_gz(path: Path) -> NDArray[np.uint8]:
    """Read a gzipped IDX file (images ``[n, rows, columns]``, labels ``[n]``). Raises ValueError naming the file."""
    try:
        return parse_idx(gzip.decompress(path.read_bytes()))
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: {error}") from error


def read_cifar10_archive(path: Path) -> dict[str, NDArray[np.uint8]]:
    """Read ``cifar-10-binary.tar.gz``: x_train, y_train, x_test, y_test, images ``[n, 3, 32, 32]``, labels ``[n]``.

    Nothing is unpacked to disk.

    Raises ValueError naming the file and what is missing in it.
    """
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = member.name.rsplit("/", 1)[-1]
                stream = archive.extractfile(member) if name in (*_CIFAR_TRAIN, *_CIFAR_TEST) else None
                if stream is not None:
                    found[name] = stream.read()
        missing = [name for name in (*_CIFAR_TRAIN, *_CIFAR_TEST) if name not in found]
        if missing:
            raise ValueError(f"no {', '.join(missing)} in the archive")
        out: dict[str, NDArray[np.uint8]] = {}
        for share, names in (("train", _CIFAR_TRAIN), ("test", _CIFAR_TEST)):
            images, labels = zip(*(parse_cifar10(found[name]) for name in names), strict=True)
            out[f"x_{share}"], out[f"y_{share}"] = np.concatenate(images), np.concatenate(labels)
    except (ValueError, OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise ValueError(f"{path}: {error}") from error
    return out
