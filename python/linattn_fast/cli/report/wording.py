"""What certificates and learned layers are said to be: in tables, on the page, and as JSON."""

from __future__ import annotations

from typing import Any

from ...certificate.certificate import Certificate
from ...fitting.result import Fit


def rank_in_words(certificate: Certificate) -> str:
    """The rank, with commas, or "unknown"."""
    return "unknown" if certificate.rank is None else f"{certificate.rank:,}"


def verdict_in_words(certificate: Certificate) -> str:
    """What a verdict means for those who use the layer."""
    if certificate.verdict == "identifiable":
        return (
            "The data determines the layer: every layer that fits it best computes the same "
            "function, on every input. That is proved, all rounding accounted for."
        )
    p = certificate.dimension
    missing = 0 if certificate.rank is None else p - certificate.rank
    if certificate.verdict == "undecided" and missing:
        return (
            f"Numerically, the data says nothing along {missing:,} of {p:,} "
            "directions: what it may say is as small as rounding. But it is not proved to say "
            "nothing, so that the layer may yet be determined, in exact arithmetic."
        )
    if certificate.verdict == "undecided":
        return (
            "The data may determine the layer, but double precision is not enough to prove it. "
            "Better scaled tokens, or more of them, may decide it."
        )
    least = "at least " if certificate.n_samples < p else ""
    along = "some" if certificate.rank is None else f"{least}{missing:,}"
    return (
        "The data does not determine the layer: layers that fit equally well compute different "
        f"functions. That is proved. Along {along} of {p:,} directions, by the "
        "numerical rank, the data says nothing; predictions for inputs that do not need them are "
        "determined all the same."
    )


def certificate_fields(certificate: Certificate | None) -> dict[str, Any] | None:
    """What a certificate says about the layer as a whole, for JSON."""
    if certificate is None:
        return None
    names = ("verdict", "evidence", "lambda_min", "lower_bound", "condition", "rank", "dimension")
    return {name: getattr(certificate, name) for name in (*names, "n_samples", "positions")}


def layer_facts(layer: Fit) -> list[tuple[str, object]]:
    """Rows of a table about a learned layer."""
    info, certificate = layer.info, layer.certificate
    share = ""
    if info.mean_squared_target > 0 and info.mean_squared_error_bound < info.mean_squared_error:
        share = f", {info.mean_squared_error / info.mean_squared_target:.2g} of it"
    rows: list[tuple[str, object]] = [
        ("layer", f"{layer.d} coordinates to {layer.d_out}, positions {layer.positions!r}"),
        ("data", f"{info.n_samples:,} samples, {info.dimension:,} features"),
        ("mean square", f"targets {info.mean_squared_target:.4g}, errors "
                        f"{info.error_in_words}{share}"),
        ("certificate", "none was made" if certificate is None
         else f"{certificate.verdict}: {certificate.evidence}"),
        ("heads", info.heads or "none"),
    ]  # fmt: skip
    return rows
