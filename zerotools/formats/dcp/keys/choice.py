"""Which of a DCP's models is meant, and the sentences about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zerotools.core.errors import BadRequest
from zerotools.formats.dcp.keys.optimizer_sections import OptimizerSection
from zerotools.formats.dcp.keys.section_names import (
    is_copy_word,
    is_model_word,
    is_plain_optimizer_word,
)
from zerotools.formats.dcp.keys.sections import MOST, ROOT, Section, Sections, merged_below

_MAX_LISTED = 12


@dataclass(frozen=True)
class ModelChoice:
    """The chosen model. `model` is None if the checkpoint has no model, or several and no choice;
    then `question` is the sentence that asks. `notes` are sentences on the choice."""

    model: Section | None
    notes: tuple[str, ...] = ()
    question: str | None = None


def choose_model(sections: Sections, path: object, asked: str | None) -> ModelChoice:
    """Choose the model of the checkpoint at `path`; `asked` is the user's `--section`.

    Raises:
        BadRequest: no section has that name, or several.
    """
    if asked is not None:
        named = _asked(sections, path, asked)
        return ModelChoice(named, tuple(_said(sections, named)))
    model = _meant(sections)
    if model is not None:
        return ModelChoice(model, tuple(_said(sections, model)))
    if not sections.models:
        return ModelChoice(None)
    question = (
        f"{path} holds several models and does not say which one to take: "
        f"{_listed(sections, sections.models)}; name one with --section"
    )
    return ModelChoice(None, question=question)


def _asked(sections: Sections, path: object, asked: str) -> Section:
    every = (*sections.models, *sections.others)
    found = [section for section in every if section.label == asked]
    found = found or [section for section in every if str(section.word) == asked]
    if len(found) == 1:
        return found[0]
    merged = None if found else merged_below(sections, tuple(asked.split(".")))
    if merged is not None:
        return merged
    many = "several sections" if found else "no section"
    raise BadRequest(
        f"{path} has {many} called {asked!r:.80}; it has {_listed(sections, every) or 'none'}"
    )


def _meant(sections: Sections) -> Section | None:
    if len(sections.models) > MOST:
        return None
    models = [section for section in sections.models if not _is_copy(section, sections)]
    if len(models) == 1:
        return models[0]
    trained = [section for section in models if _is_trained(sections, section)]
    called = [s for s in trained or models if is_model_word(s.word) or (trained and not s.path)]
    if len(called) != 1 or _are_trained_apart(sections, trained):
        return None
    return called[0]


def owner_of(sections: Sections, number: int) -> Section | None:
    """Return the model that the optimizer with this number trains, or None if it is unknown."""
    owners = [section for section in sections.owners[number] if not _is_copy(section, sections)]
    if not sections.owners[number] and len(sections.models) == len(sections.optimizers) == 1:
        return sections.models[0]
    called = [section for section in owners if is_model_word(section.word)]
    found = owners if len(owners) == 1 else called
    return found[0] if len(found) == 1 else None


def _is_copy(section: Section, sections: Sections) -> bool:
    """Return whether a model is an average of another model's weights, which has some of its
    names."""
    return any(map(is_copy_word, section.path)) and any(
        other is not section and other.known & section.known for other in sections.models
    )


def _are_trained_apart(sections: Sections, trained: Sequence[Section]) -> bool:
    """Return whether two models have an optimizer each: other models, or the same names twice."""
    if len(trained) < 2:
        return False
    owned = {frozenset(map(id, owners)) for owners in sections.owners if owners}
    return len(owned) > 1 or _are_rivals(
        [o for o, owners in zip(sections.optimizers, sections.owners, strict=True) if owners]
    )


def _are_rivals(optimizers: Sequence[OptimizerSection]) -> bool:
    """Return whether two optimizers have the same state of the same parameters."""
    seen: set[tuple[str, str]] = set()
    for optimizer in optimizers:
        mine = set(optimizer.state.values())
        if seen & mine:
            return True
        seen |= mine
    return False


def trainers(sections: Sections, model: Section) -> list[OptimizerSection]:
    """Return the optimizers with the model's state. If two have the same state, take the one with
    the exact name `optimizer`."""
    mine = [
        optimizer
        for number, optimizer in enumerate(sections.optimizers)
        if (owner := owner_of(sections, number)) is not None and owner.path == model.path
    ]
    if not _are_rivals(mine):
        return mine
    plain = [o for o in mine if o.path and is_plain_optimizer_word(o.path[-1])]
    return plain if len(plain) == 1 else []


def _is_trained(sections: Sections, section: Section) -> bool:
    return any(owner is section for owners in sections.owners for owner in owners)


def _said(sections: Sections, taken: Section) -> Iterator[str]:
    """Yield notes on the choice; none if there is one model, in the dict that every reader looks
    for."""
    beside = [section for section in sections.models if section is not taken]
    loose = [
        section
        for section in sections.others
        if section.path == taken.path or any(t.shape for t in section.tensors.values())
    ]
    if beside:
        names = [section.label for section in beside]
        yield (
            f"took the section {_held(sections, taken)}; not taken: {_listed(sections, beside)}; "
            f"--section {names[0]} takes {'it' if len(names) == 1 else 'the first'} instead"
        )
    elif taken.path not in ((), ("model",)):
        yield f"took the section {_held(sections, taken)} for the model"
    if loose:
        yield f"next to the weights there is state of the run: {_names(loose)}"


def _names(sections: Sequence[Section]) -> str:
    flats = [flat for section in sections for flat in section.names]
    more = f" and {len(flats) - _MAX_LISTED} more" if len(flats) > _MAX_LISTED else ""
    return ", ".join(flat[:80] for flat in flats[:_MAX_LISTED]) + more


def _listed(sections: Sections, listed: Sequence[Section]) -> str:
    more = f" and {len(listed) - _MAX_LISTED} more" if len(listed) > _MAX_LISTED else ""
    return ", ".join(_held(sections, section) for section in listed[:_MAX_LISTED]) + more


def _held(sections: Sections, section: Section) -> str:
    """Return `generator (12 tensors, 3,500 elements, float32, trained by optimizer_g)`."""
    count = len(section.tensors)
    elements = 0
    for tensor in section.tensors.values():
        size = 1
        for n in tensor.shape:
            size *= n
        elements += size
    types = sorted({tensor.dtype.name for tensor in section.tensors.values()})
    facts = [f"{count} tensor{'s' if count != 1 else ''}", f"{elements:,} elements", *types[:3]]
    facts += [f"trained by {optimizer.label}" for optimizer in trainers(sections, section)[:3]]
    label = section.label if section.label != ROOT else f"{ROOT} (the top level)"
    return f"{label[:80]} ({', '.join(facts)})"
