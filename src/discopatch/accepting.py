"""Normal images after a fit: accepted alarms, and updates by a folder of new normal images.

Accepting lowers scores and raises none, and the calibration scores stay: no image is flagged that was not flagged
before, so that the guarantee holds whatever images are accepted and however they are chosen. An update calibrates anew,
on a random sample of the new images, for which the rate then holds.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from discopatch.calibration import Calibration, check_calibration, check_enough
from discopatch.encoders import Encoder, Kind
from discopatch.errors import ParameterError
from discopatch.fitting import MIN_IMAGES, FittedState, MakeEncoder, Split, found_changes
from discopatch.groups import Groups, find_groups
from discopatch.heads import ComponentsHead
from discopatch.heads.modes import Accepted, Mode, unusual_places
from discopatch.images import NamedImage, RefusalReport, Source, Workers
from discopatch.normal_images import NormalImages, Progress, check_distinct
from discopatch.scorer import Scorer

MAX_ACCEPTED = 64  # modes of a detector
PLACES: tuple[Kind, ...] = ("places",)
N_PLACED = 64  # images of an update whose unusual places are remembered


def with_modes(state: FittedState, modes: Sequence[Mode]) -> FittedState:
    """The state with these modes, in place of those that it had; its calibration stays."""
    head = state.fitted.head
    if not isinstance(head, ComponentsHead):
        raise ParameterError(f"a detector with the {state.parameters.head} head cannot accept images: fit it again")
    if len(modes) > MAX_ACCEPTED:
        raise ParameterError(
            f"{len(modes)} accepted images, and at most {MAX_ACCEPTED} are kept: update the detector with a folder of "
            "such images (fit --update)"
        )
    places = np.concatenate([np.empty((0, len(state.fitted.places.mean))), *(each.places for each in modes)])
    fitted = replace(state.fitted, head=head.accept(modes), places=state.fitted.places.accept(places))
    return replace(state, fitted=replace(fitted, modes=tuple(modes)))


def accept(state: FittedState, images: Iterable[NamedImage], encoder: Encoder, local: Encoder) -> FittedState:
    """The state to which these images are normal too. Images that were accepted before are left out.

    encoder: gives the features of the head; `local` those of places.
    """
    modes, time = list(state.fitted.modes), datetime.now(UTC).isoformat(timespec="seconds")
    for image in images:
        digest = blake2b(image.pixels.tobytes(), digest_size=8).hexdigest()
        if digest not in {each.source.digest for each in modes}:
            features = encoder.extract_pixels(image.pixels[None])
            places = unusual_places(state.fitted.places, local.extract_pixels(image.pixels[None]).places[0])
            modes.append(Mode.of(Accepted(image.name, digest, time), features, [places]))
    return with_modes(state, modes)


def take_back(state: FittedState, names: Sequence[str]) -> FittedState:
    """The state without the accepted images of these names or digests."""
    modes = list(state.fitted.modes)
    fixed = max((number for number, each in enumerate(modes) if each.source.is_update), default=-1)
    for name in names:
        found = [number for number, each in enumerate(modes) if name in (each.source.name, each.source.digest)]
        if not found:
            raise ParameterError(f"{name} is not among the accepted images: give a name from the list of them")
        if found[-1] <= fixed:
            raise ParameterError(
                f"{name} cannot be taken back, because an update calibrated the detector after it: "
                "take the file from before the update"
            )
        del modes[found[-1]]
    return with_modes(state, modes)


def update(
    state: FittedState,
    images: Source,
    make_encoder: MakeEncoder,
    *,
    groups: Groups | None,
    workers: Workers,
    progress: Progress | None,
) -> FittedState:
    """The state to which a random part of these images is normal too, calibrated on the others."""
    fitted, parameters, refusals = state.fitted, state.parameters, RefusalReport()
    seed = parameters.seed
    encoder = make_encoder([kind for kind in fitted.head.needs if kind != "places"])
    new = NormalImages.collect(encoder, images, refusals, workers=workers, progress=progress, seed=seed)
    check_enough(len(new), MIN_IMAGES, refusals.summary() if refusals else "")
    copies = check_distinct(new.digests, new.names, needed=MIN_IMAGES)
    grouped = find_groups(groups, new.features.statistics, new.names, new.positions)
    rate = fitted.promised_rate or fitted.calibration.rate
    split = Split.make(grouped, calibration=None, rate=rate, confidence=parameters.confidence, seed=seed)
    rng = np.random.default_rng([seed, 18])

    def places() -> Iterator[NDArray[np.float32]]:
        local = make_encoder(PLACES, dense=True)
        drawn = rng.permutation(new.pixels.among(split.fit))[:N_PLACED]
        for features in local.extract_each(new.pixels.read(drawn)):
            yield unusual_places(fitted.places, features.places[0])

    digest = blake2b(b"".join(new.digests), digest_size=8).hexdigest()
    name, time = new.names[0], datetime.now(UTC).isoformat(timespec="seconds")
    source = Accepted(name, digest, time, len(split.fit))
    mode = Mode.of(source, new.features.select(split.fit), list(places()), seed=seed)
    updated = with_modes(state, [*fitted.modes, mode])
    scorer = Scorer(make_encoder(updated.fitted.head.needs, compare=updated.fitted.places), updated.fitted.head)
    kept = new.pixels.among(split.held_out)
    extracted = scorer.encoder.extract_each(new.pixels.read(kept))
    scores = np.sort(np.concatenate([scorer.score_features(each) for each in extracted]))
    check_calibration(scores, split.rate)
    calibration = Calibration(scores, split.rate)
    scorer = Scorer(scorer.encoder, updated.fitted.head, calibration)
    changed = new.positions[rng.permutation(split.held_out)[: parameters.detection_images]]
    rates = found_changes(scorer, images, changed, seed=seed)
    usual = fitted.aspects or new.aspects
    result = replace(
        updated.fitted,
        calibration=calibration,
        n_fit=fitted.n_fit + len(split.fit),
        n_groups=split.n_groups,
        groups=grouped.kind,
        cautions=tuple(filter(None, (copies, grouped.caution))),
        refusals=refusals,
        detection_rates=rates,
        promised_rate=split.promised_rate,
        aspects=(min(usual[0], new.aspects[0]), max(usual[1], new.aspects[1])),
    )
    return replace(updated, fitted=result)
