"""Augmented images, and how pixels are scaled."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hanse.base.errors import UserError
from hanse.data import build, load
from hanse.data.augment import Augment
from hanse.data.spec import parse_spec


def test_crop_flip_is_a_window_of_the_padded_image() -> None:
    x = torch.rand(400, 2, 6, 5)
    found = Augment("crop-flip", (-1.0, -3.0))(x, np.random.default_rng(0))
    padded = torch.cat([torch.full((400, 1, 14, 13), -1.0), torch.full((400, 1, 14, 13), -3.0)], 1)
    padded[:, :, 4:10, 4:9] = x
    places = []
    for image, made in zip(padded, found, strict=True):
        wide = image.unfold(1, 6, 1).unfold(2, 5, 1)  # every window, [2, 9, 9, 6, 5]
        for mirrored in (False, True):
            window = wide.flip(4) if mirrored else wide
            same = (window == made[:, None, None]).all(4).all(3).all(0)
            places += [(*at, mirrored) for at in torch.nonzero(same).tolist()[:1]]
    assert len(places) == 400  # each is such a window
    assert {(top, left) for top, left, _ in places} >= {(0, 0), (8, 8), (0, 8), (8, 0)}  # 81 places, 400 images
    assert 0.4 < np.mean([mirrored for _, _, mirrored in places]) < 0.6


def test_scales_and_what_black_is(tmp_path: Path) -> None:
    images = np.arange(40 * 784, dtype=np.int64).reshape(40, 28, 28).astype(np.uint8)
    labels = (np.arange(40) % 10).astype(np.uint8)
    np.savez(tmp_path / "fashion_mnist.npz", x_train=images, y_train=labels, x_test=images[:20], y_test=labels[:20])
    pixel = torch.from_numpy(images[:, None] / 255.0).float()
    for scale, mean, std in (("unit", 0, 1), ("centred", 0.5, 0.5), ("inverted", 0.5, -0.5)):
        found = load("fashion_mnist", root=tmp_path, scale=scale)  # type: ignore[arg-type]
        assert torch.allclose(found.train.x, (pixel - mean) / std, atol=1e-6)
        assert found.black == (-mean / std,)
    with pytest.raises(UserError, match=r"data.source.scale.*'imagenet'"):
        load("fashion_mnist", root=tmp_path, scale="imagenet")
    source = {"name": "fashion_mnist", "scale": "centred"}
    spec = {"source": source, "path": str(tmp_path), "partition": "iid", "clients": 2, "augment": "crop-flip"}
    assert build(parse_spec(spec)).augment == Augment("crop-flip", (-1.0,))


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(UserError, match=r"data.augment.*'crop-flip'"):
        build(parse_spec({"source": "fedsoft_linear", "partition": "iid", "clients": 2, "augment": "crop-flip"}))
