"""The model ``"lora"``: a table row is one client's adapter. The base model below it is frozen, loaded once and shared.

LoRA (Hu et al. 2021) adds ``alpha / rank B A`` to chosen weights, with ``A [rank, in]`` and ``B [out, rank]``. A and B
of all layers are the module's only parameters. A row, a message and a proximal term therefore have only the adapter's
size. The base is a published model, or a small one of Llama's architecture with random weights.

:func:`lora` is the factory that ``model.name = "lora"`` calls. :func:`load_base` loads the base, and :class:`Adapted`
is the module that engines train.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hanse.base.errors import UserError, gated, library
from hanse.base.factories import Positive, Rate
from hanse.base.streams import torch_seed
from hanse.learning.models import Shape
from hanse.wings.language.judge import AnswerJudge
from hanse.wings.language.records import BYTES, EXTRA, ByteTokenizer, build_tokenizer

TINY = "tiny"


@lru_cache(maxsize=1)
def load_base(name: str, bits: int | None = None, seed: int = 0, width: int = 64, layers: int = 2) -> nn.Module:
    """Return a frozen causal language model. The one asked for last is kept, since bases are large.

    Args:
        name: "tiny", a folder with a model, or the name of a model on the hub. "tiny" is Llama's architecture with
            bytes as tokens and random weights. It was never trained.
        bits: 8 or 4 quantises the weights of a published model. None: they are not quantised.
        seed: the seed of the weights of "tiny".
        width: the width of the hidden states of "tiny".
        layers: how many layers "tiny" has.

    Raises:
        UserError: the model or a library is missing, or this machine does not support ``bits``.
    """
    transformers = library("transformers", f"model.base: {name!r} needs transformers, {EXTRA}")
    if name == TINY:
        model = _tiny(transformers, seed, width, layers)
    else:
        model = _published(transformers, name, bits)
    model.requires_grad_(False)
    return model.eval()


def _tiny(transformers: Any, seed: int, width: int, layers: int) -> nn.Module:
    """Return a small Llama with weights drawn under ``seed``."""
    config = transformers.LlamaConfig(
        vocab_size=ByteTokenizer().size,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=2048,
        initializer_range=width
        ** -0.5,  # with Llama's 0.02 the layers of so narrow a model would pass on next to nothing
        bos_token_id=None,
        eos_token_id=ByteTokenizer().end,
        pad_token_id=ByteTokenizer().padding,
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(torch_seed(seed, "base model"))
        model: nn.Module = transformers.LlamaForCausalLM(config)
    return model


def _published(transformers: Any, name: str, bits: int | None) -> nn.Module:
    """Return a model from a folder, the cache or the hub, quantised if ``bits`` is given."""
    # the name may come in a server's message: nothing that a model's folder brings is run
    options: dict[str, Any] = {"trust_remote_code": False}
    if bits is not None:
        options["quantization_config"] = _quantised(transformers, bits)
        options["device_map"] = {"": 0}
    what = f"model.base: {name!r}: neither a folder with a model nor in the cache, and it cannot be downloaded"
    with gated(what, "allowed offline: 'tiny', or a folder"):
        model: nn.Module = transformers.AutoModelForCausalLM.from_pretrained(name, **options)
    return model


def _quantised(transformers: Any, bits: int) -> Any:
    """Return the configuration by which transformers quantises, or raise UserError where that cannot be done."""
    if not torch.cuda.is_available():
        raise UserError(f"model.bits: {bits}: needs a CUDA device, and there is none here; leave it out")
    library("bitsandbytes", f"model.bits: {bits} needs bitsandbytes, {EXTRA}")
    if bits == 8:
        return transformers.BitsAndBytesConfig(load_in_8bit=True)
    return transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)


def _sharing_copy(model: nn.Module) -> nn.Module:
    """Return a copy with modules of its own, whose frozen weights and buffers are the very tensors of the original."""
    shared: list[Tensor] = [p for p in model.parameters() if not p.requires_grad]
    shared += list(model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in shared})


SLASH = "/"
"""Stands in an adapter's parameter names for the dots, which PyTorch does not allow there."""


class Adapted(nn.Module):
    """A frozen language model with an adapter. Only the adapter's parameters are this module's parameters.

    From tokens ``[n, T]`` it computes logits ``[n, k, T]``. Copies share the base's weights.

    Args:
        body: the base with the adapter's layers in it. Only the adapter requires gradients.
        judge: the judge that says whether an answer is right.
    """

    def __init__(self, body: nn.Module, judge: AnswerJudge) -> None:
        super().__init__()
        self.judge = judge
        self._hidden = [body]  # in a list, so its parameters are not registered
        trained = [(name, p) for name, p in body.named_parameters() if p.requires_grad]
        self.names = tuple(name for name, _ in trained)
        self.adapter = nn.ParameterDict({_key(name): nn.Parameter(p.detach().float().clone()) for name, p in trained})

    @property
    def body(self) -> nn.Module:
        """The base with the adapter's layers in it."""
        return self._hidden[0]

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of each next token. No position sees later ones, so padding at the end does no harm."""
        tensors = {name: self.adapter[_key(name)] for name in self.names}
        output = functional_call(self.body, tensors, (), {"input_ids": x, "use_cache": False}, tie_weights=False)
        logits: Tensor = output.logits
        return logits.transpose(1, 2)

    def __deepcopy__(self, memo: dict[int, Any]) -> Adapted:
        twin = Adapted.__new__(Adapted)
        nn.Module.__init__(twin)
        twin.judge, twin.names = self.judge, self.names
        twin._hidden = [_sharing_copy(self.body)]
        twin.adapter = copy.deepcopy(self.adapter, memo)
        twin.train(self.training)
        return twin

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Adapted:
        """Move or convert the module; the base goes to the same device, but keeps its own precision."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        device = next(self.parameters()).device
        if next(self.body.parameters()).device != device:
            self.body.to(device)
        return self


def _key(name: str) -> str:
    """Return the name of an adapter's parameter within this module, which may have no dots."""
    return name.removesuffix(".weight").removesuffix(".default").replace(".", SLASH)


def lora(
    input_shape: Shape,
    num_classes: int | None,
    base: str = TINY,
    rank: Positive = 32,
    alpha: Rate = 64.0,
    dropout: float = 0.0,
    targets: Sequence[str] | str = ("q_proj", "v_proj"),
    bits: Literal[4, 8] | None = None,
    candidates: Sequence[str] = (),
    base_seed: int = 0,
    base_width: int = 64,
    base_layers: int = 2,
) -> nn.Module:
    """Return a language model with a LoRA adapter. The default rank and alpha are those of iPFL, E.3.

    Args:
        input_shape: ``(tokens,)``.
        num_classes: how many tokens the data have.
        base: "tiny", a folder with a model, or the name of a model on the hub.
        rank: the rank of the adapter's factors, the same for all clients, since rows of different lengths do not mix.
        alpha: the adapter's change is scaled by ``alpha / rank``.
        dropout: the share of the adapter's inputs that is dropped in training, from 0 to 1.
        targets: the names of the weights that are adapted, or "all-linear".
        bits: 8 or 4 for a quantised base. None: the base is not quantised.
        candidates: the answers whose likelihoods are compared. If empty, an answer is right if each of its tokens is
            the likeliest one.
        base_seed: the seed of the tiny base's weights.
        base_width: the width of the tiny base.
        base_layers: the number of layers of the tiny base.

    Raises:
        UserError: an option is out of range, the base or a library is missing, or the data have more tokens than the
            base.
    """
    if num_classes is None or len(input_shape) != 1:
        raise UserError(f"model.name: 'lora': takes instructions [tokens]; samples have {input_shape}")
    peft = library("peft", f"model.name: 'lora': needs peft, {EXTRA}")
    shared = load_base(base, bits, base_seed, base_width, base_layers) if base == TINY else load_base(base, bits)
    tokens = getattr(shared, "config").vocab_size  # noqa: B009 - a module's attribute by its library
    if num_classes > tokens:
        raise UserError(
            f"model.base: {base!r} has {tokens} tokens, and the data have {num_classes}; data.source.tokenizer must be "
            f"{BYTES if base == TINY else base!r}"
        )
    body = _sharing_copy(shared)
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type="CAUSAL_LM",
    )
    with gated(f"model.targets: {targets!r}"):
        peft.inject_adapter_in_model(config, body)
    tokenizer = build_tokenizer(BYTES if base == TINY else base)
    answers = tuple((*tokenizer.encode(text), tokenizer.end) for text in candidates)
    return Adapted(body, AnswerJudge(answers, tokenizer.padding))
