"""What to load and how to split it: the ``[data]`` table of an experiment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from hanse.base.errors import UserError, nearest
from hanse.data.mixtures import check_mix
from hanse.data.partitions import Choose, Sampler, SizeLaw
from hanse.data.sources import GENERATED, SOURCES, Scale

PartitionName = Literal["iid", "dirichlet", "niid", "mixture", "cluster", "skew", "pathological", "natural", "pooled"]


class DataSpec(BaseModel):
    """Source, partition and shares. Frozen; a key that does not exist, or a wrong type, is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    source: str = Field(
        "digits",
        description="digits, mnist, fashion_mnist, cifar10, emnist_byclass, emnist_balanced, emnist_letters, "
        "emnist_cased, synthetic, fedsoft_linear, shakespeare, femnist, pacs, instructions, instruction_files, fiqa, "
        "tfns, nwgi, code_alpaca, mixed_finance, finance_code, or 'package.module:function'",
    )
    partition: PartitionName = Field(
        "dirichlet", description="how the train samples are split over the clients (synthetic: natural)"
    )
    clients: int = Field(
        20,
        ge=1,
        description="number of registered clients; natural: this many are chosen; pooled: not used, always 1",
    )
    seed: int = Field(0, ge=0, description="seed of the split and of generated data; run.seed is for the rest")
    alpha: float = Field(
        0.5,
        ge=0,
        description="dirichlet, niid: concentration, above 0, small is skewed; synthetic: variance of the "
        "models' means",
    )
    beta: float = Field(0.5, ge=0, description="synthetic: variance of the inputs' means")
    sampler: Sampler = Field(
        "log",
        description="dirichlet: 'log' is exact at any alpha; 'float32-clamped' draws as GreedyFed's published code did",
    )
    min_samples: int = Field(
        10,
        ge=1,
        description="iid, dirichlet, niid, mixture, cluster: least samples of a client, before its shares are cut",
    )
    classes_per_client: int | None = Field(
        None, ge=1, description="pathological (default 2), skew (default 5): number of classes of each client"
    )
    mix: str = Field(
        "10:90",
        description="mixture: 'a:b' (a client's main distribution has b %), 'linear' (client k of N has (k + 0.5) / N "
        "of the first of two), or 'random'",
    )
    test_mix: Literal["same", "inverse"] = Field(
        "same", description="mixture: how a client's test and validation shares are mixed; 'inverse': from the opposite"
    )
    validation_mix: Literal["test", "train"] = Field(
        "test",
        description="mixture: which of its two mixtures a client's validation share is drawn by ('train' in the "
        "code of PI-FL's authors)",
    )
    distributions: Literal["classes", "rotation", "source"] | None = Field(
        None,
        description="mixture: what tells distributions apart: groups of classes, images turned by steps of 90 degrees, "
        "or the source (the default where the source has distributions, else classes)",
    )
    num_distributions: int | None = Field(
        None,
        ge=2,
        description="mixture: number of distributions made by classes (consecutive groups) or rotation; default 2",
    )
    class_groups: list[list[int]] | None = Field(
        None, description="mixture: the classes of each distribution; other classes are not used"
    )
    clusters: int = Field(3, ge=1, description="cluster: number of clusters of clients")
    alpha_between: float = Field(0.1, gt=0, description="cluster: Dirichlet concentration between clusters")
    alpha_within: float = Field(10.0, gt=0, description="cluster: Dirichlet concentration inside a cluster")
    samples_per_client: int | None = Field(
        None,
        ge=1,
        description="iid, dirichlet, mixture: mean number of samples of a client (default: all samples are used); "
        "synthetic: its exact number (default: lognormal)",
    )
    use_all: bool = Field(
        True,
        description="dirichlet: use all samples, though clients served last take what is left; false: keep every mix, "
        "and use what the class that runs out first allows (as GreedyFed's published code does)",
    )
    sizes: SizeLaw | None = Field(
        None,
        description="iid, dirichlet, mixture: 'power' (the default of dirichlet) or 'equal' (of the others)",
    )
    client_test: float = Field(
        0.0, ge=0, lt=1, description="share of each client's own samples that it keeps for testing"
    )
    client_test_from: Literal["own", "server", "equal"] = Field(
        "own",
        description="where a client's test share comes from: cut from its own samples, or from the server's test set: "
        "its own there if the source says whose they are, else drawn with its class mixture (client_test times its "
        "train samples; two clients may share some); equal: the server's test set is dealt out, every client gets "
        "as many samples of each class, rounded down (client_test is not used)",
    )
    client_validation: float = Field(
        0.0, ge=0, lt=1, description="share of each client's own samples that it keeps for validation"
    )
    validation: float = Field(
        0.5, ge=0, lt=1, description="share of the source's test set that is the server's validation set"
    )
    ids: str | None = Field(
        None, description="natural: path of a .npy file with one integer client id for each train sample"
    )
    scale: Scale = Field(
        "standard",
        description="image sources: 'standard' (mean 0, deviation 1 over the train set), 'unit' (0 to 1) or 'centred' "
        "(-1 to 1)",
    )
    choose: Choose = Field(
        "random", description="natural: which of the source's clients take part: a 'random' choice, or the 'largest'"
    )
    per_owner: int = Field(
        1, ge=1, description="natural: into how many clients each of the source's is divided; they form a group"
    )
    tokenizer: str = Field(
        "bytes", description="instructions: 'bytes', or a language model's tokenizer by its hub name or folder"
    )
    length: int = Field(512, ge=2, description="instructions: tokens of the window; what is longer is cut and counted")
    path: str | None = Field(None, description="folder to look for the source's file in, before HANSE_DATA")
    download: bool = Field(True, description="whether a source that is not found may be downloaded")

    @property
    def tested_by_clients(self) -> bool:
        """Whether clients have test shares."""
        return self.client_test > 0 or self.client_test_from == "equal"

    @field_validator("source")
    @classmethod
    def _known_source(cls, value: str) -> str:
        if value not in SOURCES and value not in GENERATED and ":" not in value:
            raise ValueError(f"no such source{nearest(value, (*SOURCES, *GENERATED))}")
        return value

    @field_validator("mix")
    @classmethod
    def _known_mix(cls, value: str) -> str:
        check_mix(value)
        return value

    @field_validator("class_groups")
    @classmethod
    def _disjoint(cls, value: list[list[int]] | None) -> list[list[int]] | None:
        flat = [c for group in value or [] for c in group]
        if value is not None and (len(value) < 2 or not all(value) or min(flat) < 0 or len(set(flat)) < len(flat)):
            raise ValueError(
                "allowed: two or more lists of classes, none empty, no class twice, such as [[0, 1], [2, 3]]"
            )
        return value

    @model_validator(mode="before")
    @classmethod
    def _generated_is_natural(cls, values: Any) -> Any:
        # a generated source has its own clients, so that "natural" is the only partition it can have
        if isinstance(values, Mapping) and values.get("source") in GENERATED:
            return {"partition": "natural", **values}
        return values

    @model_validator(mode="after")
    def _consistent(self) -> DataSpec:
        if self.source in GENERATED and self.partition != "natural":
            raise ValueError(
                f"partition = '{self.partition}': the source '{self.source}' makes each client's samples "
                "itself; "
                "allowed: natural, or leave partition out"
            )
        if self.partition in ("dirichlet", "niid") and self.alpha == 0:
            raise ValueError(f"alpha = 0 with partition = '{self.partition}'; allowed: a number above 0")
        if self.client_test + self.client_validation >= 1:
            raise ValueError(
                f"client_test + client_validation = {self.client_test + self.client_validation:g}; "
                "allowed: less than 1, so that something is left to train on"
            )
        lines = [*self._mixture_lines(), *self._lending_lines()]
        if lines:
            raise ValueError(lines[0])
        return self

    def _mixture_lines(self) -> Iterator[str]:
        if self.partition != "mixture":
            return
        if self.class_groups is not None and self.num_distributions not in (None, len(self.class_groups)):
            yield f"num_distributions = {self.num_distributions} with {len(self.class_groups)} class_groups"
        if self.class_groups is not None and self.distributions in ("rotation", "source"):
            yield f"class_groups with distributions = '{self.distributions}'; allowed with: 'classes'"
        if self.test_mix == "inverse" and self.client_test + self.client_validation == 0:
            yield "test_mix = 'inverse' needs client_test or client_validation above 0: there is nothing to mix"

    def _lending_lines(self) -> Iterator[str]:
        if self.client_test_from != "own" and (self.partition == "mixture" or self.source in GENERATED):
            where = f"source = '{self.source}'" if self.source in GENERATED else "partition = 'mixture'"
            yield f"client_test_from = '{self.client_test_from}' with {where}; allowed: 'own'"


def parse_spec(values: Mapping[str, Any]) -> DataSpec:
    """Return the spec of a mapping (a TOML table). Raises UserError with one line for each mistake."""
    try:
        return DataSpec.model_validate(dict(values))
    except ValidationError as error:
        raise UserError(*(_line(dict(item)) for item in error.errors())) from error


def _line(item: Mapping[str, Any]) -> str:
    name = ".".join(str(part) for part in ("data", *item["loc"]))
    if item["type"] == "extra_forbidden":
        return f"{name}: no such key{nearest(str(item['loc'][-1]), DataSpec.model_fields)}"
    message = item["msg"].removeprefix("Value error, ")
    if not item["loc"]:
        return f"data: {message}"
    return f"{name} = {item['input']!r}: {message[0].lower()}{message[1:]}"
