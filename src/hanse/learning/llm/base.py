"""Base models: loaded once, frozen, shared by every seat; or a small one of Llama's architecture, made in code."""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from hanse.base.errors import UserError, library
from hanse.base.streams import torch_seed
from hanse.data.instructions.tokens import EXTRA, ByteTokenizer, reason

__all__ = ["TINY", "load_base", "sharing_copy"]

TINY = "tiny"


def load_base(name: str, bits: int | None = None, seed: int = 0, width: int = 64, layers: int = 2) -> nn.Module:
    """Return a frozen causal language model, the same object for the same arguments.

    ``"tiny"`` is Llama's architecture with byte tokens, ``width`` and ``layers``, weights drawn under ``seed``: it has
    never seen a text. Any other name is a folder or a model of the hub. ``bits`` 8 or 4 quantises its weights. Raises
    UserError for one that is not there, or bits that this machine cannot have.
    """
    return _loaded(name, None, seed, width, layers) if name == TINY else _loaded(name, bits)


@lru_cache(maxsize=1)
def _loaded(name: str, bits: int | None, seed: int = 0, width: int = 0, layers: int = 0) -> nn.Module:
    transformers = library("transformers", f"model.base: {name!r} needs transformers, {EXTRA}")
    if name == TINY:
        model = _tiny(transformers, seed, width, layers)
    else:
        model = _published(transformers, name, bits)
    model.requires_grad_(False)
    return model.eval()


def _tiny(transformers: Any, seed: int, width: int, layers: int) -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=ByteTokenizer().size,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=2048,
        initializer_range=width**-0.5,  # at Llama's 0.02 so narrow a model's layers would hardly pass anything on
        bos_token_id=None,
        eos_token_id=ByteTokenizer().end,
        pad_token_id=ByteTokenizer().padding,
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(torch_seed(seed, "base model"))
        model: nn.Module = transformers.LlamaForCausalLM(config)
    return model


def _published(transformers: Any, name: str, bits: int | None) -> nn.Module:
    options: dict[str, Any] = {}
    if bits is not None:
        options["quantization_config"] = _quantised(transformers, bits)
        options["device_map"] = {"": 0}
    try:
        model: nn.Module = transformers.AutoModelForCausalLM.from_pretrained(name, **options)
    except (OSError, ValueError, ImportError) as error:
        raise UserError(
            f"model.base: {name!r}: neither a folder with a model nor in the cache, and it cannot be downloaded "
            f"({reason(error)}); allowed offline: 'tiny', or a folder"
        ) from None
    return model


def _quantised(transformers: Any, bits: int) -> Any:
    if bits not in (4, 8):
        raise UserError(f"model.bits: {bits}: allowed: 8, 4, or leave it out")
    if not torch.cuda.is_available():
        raise UserError(f"model.bits: {bits}: needs a CUDA device, and there is none here; leave it out")
    library("bitsandbytes", f"model.bits: {bits} needs bitsandbytes, {EXTRA}")
    if bits == 8:
        return transformers.BitsAndBytesConfig(load_in_8bit=True)
    return transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)


def sharing_copy(model: nn.Module) -> nn.Module:
    """Return a copy with modules of its own, whose frozen weights and buffers are the very tensors of the original."""
    shared: list[Tensor] = [p for p in model.parameters() if not p.requires_grad]
    shared += list(model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in shared})
