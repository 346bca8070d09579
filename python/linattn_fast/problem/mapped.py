"""The data of a fit under a feature map: mapped once where that is little, else part by part."""

from __future__ import annotations

from ..arrays.types import Positions
from ..backend.interface import Precision
from ..data.mapping.mapped_sources import StreamParts, mapped_batch, mapped_stream
from ..data.mapping.token_map import Map, StreamMaps, with_intercept
from ..data.sources import Source, batch_bytes_for
from ..data.streams import Streams
from ..features.features import Features, as_features
from ..features.samples import Samples, warn_of_layout, warn_of_padding
from ..features.states import StateFeatures
from .in_memory import InMemory
from .streamed import Streamed, streamed


def mapped_problem(
    Z: object,
    y: object,
    value: Map,
    *,
    offsets: object,
    sample_weight: object,
    positions: Positions,
    features: Features | None,
    backend: str,
    precision: Precision = "float64",
    d_out: int | None = None,
) -> InMemory | Streamed:
    """Make a problem of tokens in memory under a map; ``d_out`` is 0 without targets."""
    source = mapped_batch(Z, y, offsets, sample_weight, positions, value, d_out)
    tokens, targets, token_map = source.tokens, source.targets, source.map
    chosen = as_features(features, token_map.width).mapped_by(token_map)
    if source.nbytes <= batch_bytes_for(0):
        samples = Samples.checked(
            token_map.of(tokens),
            targets,
            sample_weight=source.weights,
            positions=positions,
            features=chosen,
            d_out=d_out,
        )
        return InMemory.of(samples, backend, precision, given=tokens)
    warn_of_padding(tokens, positions)
    if targets is not None:
        warn_of_layout(tokens, targets, positions)
    return streamed(source, positions, chosen, backend, precision, d_out=d_out)


def streams_problem(
    streams: Streams,
    y: object,
    maps: StreamMaps | None,
    *,
    sample_weight: object,
    positions: Positions,
    features: Features | None,
    backend: str,
    precision: Precision = "float64",
    d_out: int | None = None,
) -> InMemory | Streamed:
    """Make a problem of streams, mapped by ``maps`` after their own; in parts where that is much.

    ``d_out`` is 0 without targets.
    """
    chosen = features
    if maps is not None:
        if features is not None:
            raise ValueError("features: a choice of pairs and queries is for tokens, got Streams")
        streams = streams.then(maps)
        chosen = StateFeatures(streams.kind).of_streams(streams, maps)
    if streams.mapped_bytes <= batch_bytes_for(0):
        samples = Samples.checked(
            streams,
            y,
            sample_weight=sample_weight,
            positions=positions,
            features=chosen,
            d_out=d_out,
        )
        return InMemory.of(samples, backend, precision)
    source = StreamParts.of(streams, y, sample_weight, positions, d_out)
    return streamed(source, positions, chosen, backend, precision, d_out=d_out)


def stream_maps(streams: Streams, value: Map | None, intercept: bool) -> StreamMaps | None:
    """What a map beside tokens, or an intercept, does to streams; None for nothing."""
    if streams.of_tokens:
        value = with_intercept(value, intercept)
        return None if value is None else StreamMaps(value, value)
    if value is not None:
        raise ValueError(
            "map: it is for tokens, and Streams bring their own maps, key_map and query_map"
        )
    return streams.appended() if intercept else None


def mapped_source_problem(
    source: Source,
    value: Map,
    positions: Positions,
    features: Features | None,
    backend: str,
    precision: Precision,
) -> InMemory | Streamed:
    """Make a problem of a source whose batches are mapped when they are read."""
    stream = mapped_stream(source, value, positions)
    chosen = as_features(features, stream.map.width).mapped_by(stream.map)
    return streamed(stream, positions, chosen, backend, precision)
