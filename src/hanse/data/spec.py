"""What to load and how to split it: the ``[data]`` table of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from hanse.data.dirichlet import Sampler
from hanse.data.sizes import SizeLaw
from hanse.data.sources import GENERATED, SOURCES, Scale
from hanse.errors import UserError, nearest

__all__ = ["DataSpec", "PartitionName", "parse_spec"]

PartitionName = Literal["iid", "dirichlet", "niid", "pathological", "natural", "pooled"]


class DataSpec(BaseModel):
    """Source, partition and shares. Frozen; a key that does not exist, or a wrong type, is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    source: str = Field(
        "digits", description="digits, mnist, fashion_mnist, cifar10, synthetic, or 'package.module:function'"
    )
    partition: PartitionName = Field(
        "dirichlet", description="how the train samples are split over the clients (synthetic: natural)"
    )
    clients: int = Field(
        20,
        ge=1,
        description="number of registered clients; natural: a random choice of this many; pooled: not used, always 1",
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
        description="iid, dirichlet, niid: the least samples a client gets, before its shares are cut",
    )
    classes_per_client: int = Field(2, ge=1, description="pathological: number of classes of each client")
    samples_per_client: int | None = Field(
        None,
        ge=1,
        description="iid, dirichlet: mean number of samples of a client (default: all samples are used); "
        "synthetic: its exact number (default: lognormal)",
    )
    sizes: SizeLaw | None = Field(
        None, description="iid, dirichlet: 'power' (the default of dirichlet) or 'equal' (the default of iid)"
    )
    client_test: float = Field(
        0.0, ge=0, lt=1, description="share of each client's own samples that it keeps for testing"
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
        description="image sources: 'standard' (mean 0, deviation 1 over the train set) or 'unit' (0 to 1)",
    )
    path: str | None = Field(None, description="folder to look for the source's file in, before HANSE_DATA")
    download: bool = Field(True, description="whether a source that is not found may be downloaded")

    @field_validator("source")
    @classmethod
    def _known_source(cls, value: str) -> str:
        if value not in SOURCES and value not in GENERATED and ":" not in value:
            raise ValueError(f"no such source{nearest(value, (*SOURCES, *GENERATED))}")
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
        return self


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
