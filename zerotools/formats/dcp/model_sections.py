"""Find the models in a DCP, and choose one of them.

The state dict of a model is flat, so the name of a weight is the last part of its path. The part
before it is a section, such as `("app", "model")`. Tensors at the top level belong to the section
`.`; if only the state dict of a model was saved, this is the only section.

An optimizer shows which section is a model: its state has the same names, or, if it uses numbers,
the same shapes. If no optimizer shows it, the section with a common name such as `model` is chosen.
If two sections remain, the user is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from zerotools.core.adapter_tensor_names import names_in_model
from zerotools.core.errors import BadRequest
from zerotools.formats.dcp.key_paths import (
    FlatValue,
    Path,
    is_copy_word,
    is_counter,
    is_model_word,
    is_plain_optimizer_word,
    is_state_word,
    text_of,
)
from zerotools.formats.dcp.optimizer_sections import OptimizerSection, find_optimizers
from zerotools.io.distcp.metadata import SavedTensor

ROOT = "."
# With more models than this, none is chosen and none is compared with the optimizers, because all
# pairs would have to be compared.
MOST = 64


@dataclass(frozen=True, eq=False)
class Section:
    """The tensors of one dict in the state dict, keyed by flat key; `names` maps each flat key to
    the name in this dict.
    """

    path: Path
    names: Mapping[str, str]
    tensors: Mapping[str, SavedTensor]

    @property
    def label(self) -> str:
        return text_of(self.path) if self.path else ROOT

    @property
    def word(self) -> str | int:
        """The last part of the section's path."""
        return self.path[-1] if self.path else ROOT

    @cached_property
    def known(self) -> frozenset[str]:
        return frozenset(self.names.values())

    @property
    def may_be_a_model(self) -> bool:
        """True if the section can be a model: it has the name of a model, or one of its tensors
        can be a weight (not a number, a counter or another value of the run, such as `step`).
        """
        if is_model_word(self.word):
            return True
        if any(map(is_state_word, self.path)) and not any(map(is_model_word, self.path)):
            return False
        return any(t.dtype.is_float and len(t.shape) > 0 for t in self.tensors.values())


@dataclass(frozen=True)
class Sections:
    """All sections of a checkpoint.

    Attributes:
        models: the sections that may each be a model.
        others: the sections that hold tensors of the run.
        optimizers: the optimizers of the checkpoint.
        owners: for each optimizer, the models that it may train: they contain its parameters.
    """

    models: tuple[Section, ...]
    others: tuple[Section, ...]
    optimizers: tuple[OptimizerSection, ...]
    owners: tuple[tuple[Section, ...], ...]


def find_sections(values: Sequence[FlatValue]) -> Sections:
    """Divide the values of a state dict into sections."""
    optimizers = find_optimizers(values)
    taken = {flat for optimizer in optimizers for flat in optimizer.flats()}
    rest = [value for value in values if value.tensor is not None and value.flat not in taken]
    leaves = _leaves(rest)
    if not optimizers and [leaf.path for leaf in leaves] == [()]:
        return Sections(tuple(leaves), (), (), ())
    leaves = _without_counters(leaves, optimizers)
    models = _whole_models([leaf for leaf in leaves if leaf.may_be_a_model])
    if max(len(models), len(optimizers)) > MOST:
        return Sections(tuple(models), (), (), ())
    models = [_as_trained(model, optimizers) for model in _merged(models, optimizers)]
    others = tuple(leaf for leaf in leaves if not leaf.may_be_a_model)
    owners = tuple(tuple(_owners(optimizer, models)) for optimizer in optimizers)
    return Sections(tuple(models), others, tuple(optimizers), owners)


def _leaves(values: Iterable[FlatValue]) -> list[Section]:
    """Return one section for each dict that contains tensors. Dicts inside a model's dict belong
    to the model's section.
    """
    found: dict[Path, dict[str, FlatValue]] = {}
    for value in values:
        depth = len(value.path) - 1
        ends = (at for at in range(depth, 0, -1) if _ends_section(value.path[at - 1]))
        found.setdefault(value.path[: next(ends, depth)], {})[value.flat] = value
    return [_section(path, below.values()) for path, below in found.items()]


def _ends_section(word: str | int) -> bool:
    return is_model_word(word) or is_copy_word(word)


def _section(path: Path, values: Iterable[FlatValue]) -> Section:
    names, tensors = {}, {}
    for value in values:
        if value.tensor is not None:
            names[value.flat] = text_of(value.path[len(path) :])
            tensors[value.flat] = value.tensor
    return Section(path, names, tensors)


def _without_counters(
    leaves: list[Section], optimizers: Sequence[OptimizerSection]
) -> list[Section]:
    """Move the run's counters, such as `step`, into separate sections if they are at the top level
    or in the dict of an optimizer, next to weights.
    """
    trained = {name for optimizer in optimizers for name in optimizer.trained}
    found = []
    for leaf in leaves:
        is_mixed = not leaf.path or any(leaf.path == optimizer.path for optimizer in optimizers)
        counters = {
            flat
            for flat, name in leaf.names.items()
            if optimizers and is_mixed and is_counter(name) and name not in trained
        }
        found += [part for part in _parted(leaf, counters) if part.names]
    return found


def _parted(section: Section, flats: set[str]) -> Iterator[Section]:
    for inside in (False, True):
        names = {f: name for f, name in section.names.items() if (f in flats) is inside}
        yield Section(section.path, names, {f: section.tensors[f] for f in names})


def _whole_models(models: list[Section]) -> list[Section]:
    """Merge each section that has the name of a model with all sections inside it, except copies of
    the model such as an EMA.
    """
    called = {section.path for section in models if is_model_word(section.word)}
    parts: dict[Path, list[Section]] = {}
    for section in models:
        above = (section.path[:n] for n in range(1, len(section.path)))
        into = None if is_copy_word(section.word) else next((p for p in above if p in called), None)
        parts.setdefault(into or section.path, []).append(section)
    return [_union(path, found) for path, found in parts.items()]


def _union(path: Path, sections: Sequence[Section]) -> Section:
    if len(sections) == 1 and sections[0].path == path:
        return sections[0]
    names: dict[str, str] = {}
    tensors: dict[str, SavedTensor] = {}
    for section in sections:
        before = text_of(section.path[len(path) :])
        names |= {f: f"{before}.{n}" if before else n for f, n in section.names.items()}
        tensors |= section.tensors
    return Section(path, names, tensors)


def _merged(models: list[Section], optimizers: Sequence[OptimizerSection]) -> list[Section]:
    """Merge the parts of one model that were saved as separate dicts.

    The optimizer shows that the parts belong together, because its parameter names begin with the
    names of parts (`encoder.weight`). The dict that encloses the parts is the model.
    """
    for optimizer in optimizers:
        if not optimizer.trained or any(_has(section, optimizer) for section in models):
            continue
        above = dict.fromkeys(
            section.path[:depth]
            for section in models
            for depth in range(len(section.path) - 1, -1, -1)
        )
        for path in sorted(above, key=len, reverse=True)[:_MAX_ABOVE]:
            inside = [
                section
                for section in models
                if section.path[: len(path)] == path
                and _union(path, [section]).known & optimizer.trained
            ]
            union = _union(path, inside) if inside else None
            if union is not None and _has(union, optimizer):
                models = [union, *(section for section in models if section not in inside)]
                break
    return models


_MAX_ABOVE = 64


def _has(section: Section, optimizer: OptimizerSection) -> bool:
    """Return whether the section contains at least half of the parameters that the optimizer
    names.

    Half is enough because a tied weight has state under only one of its names, and a flattened
    optimizer also names frozen weights.
    """
    common = optimizer.trained & section.known
    return bool(common) and 2 * len(common) >= len(optimizer.trained)


def _as_trained(section: Section, optimizers: Sequence[OptimizerSection]) -> Section:
    """Return the section with the parameter names that its optimizer uses. Only the names of a
    saved PEFT adapter differ, because PEFT shortens them.
    """
    for optimizer in optimizers:
        renamed = names_in_model(section.known, optimizer.trained)
        if renamed and not _has(section, optimizer):
            names = {flat: renamed.get(name, name) for flat, name in section.names.items()}
            return replace(section, names=names)
    return section


def _owners(optimizer: OptimizerSection, models: Sequence[Section]) -> list[Section]:
    """Return the models that the optimizer may train.

    If the optimizer names its parameters, these are the models that contain the names; of several
    such models, those with the most matching shapes. If the optimizer numbers its parameters, a
    model must have a separate tensor with the shape of each numbered parameter.
    """
    if optimizer.trained:
        named = [section for section in models if _has(section, optimizer)]
        if len(named) < 2:
            return named
        alike = [_shapes_in_common(section, optimizer) for section in named]
        return [section for section, n in zip(named, alike, strict=True) if n == max(alike)]
    if not optimizer.is_numbered:
        return []
    shapes = Counter(_numbered_shapes(optimizer).values())
    return [
        section
        for section in models
        if shapes <= Counter(tensor.shape for tensor in section.tensors.values())
    ]


def _shapes_in_common(section: Section, optimizer: OptimizerSection) -> int:
    shapes = {name: section.tensors[flat].shape for flat, name in section.names.items()}
    return sum(
        shapes.get(name) == optimizer.tensors[flat].shape
        for flat, (name, _) in optimizer.state.items()
    )


def _numbered_shapes(optimizer: OptimizerSection) -> dict[str, tuple[int, ...]]:
    """Return the shape of each numbered parameter. This is the shape of the parameter's state
    tensor that has the most dimensions.
    """
    found: dict[str, tuple[int, ...]] = {}
    for flat, (number, _) in optimizer.state.items():
        shape = optimizer.tensors[flat].shape
        if len(shape) >= len(found.get(number, ())):
            found[number] = shape
    return found


def merged_below(sections: Sections, path: Path) -> Section | None:
    """Join all models below `path`, which a user selected, into one model. Return None if there is
    no model below `path`.
    """
    inside = [section for section in sections.models if section.path[: len(path)] == path]
    return _union(path, inside) if inside else None


_MAX_LISTED = 12


@dataclass(frozen=True)
class ModelChoice:
    """The model that was chosen.

    `model` is None if there is no model, or if there are several and none is selected; then
    `question` asks the user to select one. `notes` are sentences for the user that explain the
    choice.
    """

    model: Section | None
    notes: tuple[str, ...] = ()
    question: str | None = None


def choose_model(sections: Sections, path: object, asked: str | None) -> ModelChoice:
    """Choose the model of the checkpoint at `path`; `asked` is the user's `--section`.

    Raises:
        BadRequest: no section has the name `asked`, or several sections have it.
    """
    if asked is not None:
        named = _asked(sections, path, asked)
        return ModelChoice(named, tuple(_notes_on_choice(sections, named)))
    model = _meant(sections)
    if model is not None:
        return ModelChoice(model, tuple(_notes_on_choice(sections, model)))
    if not sections.models:
        return ModelChoice(None)
    question = (
        f"{path} holds several models, and nothing shows which one to read: "
        f"{_listed(sections, sections.models)}; choose one with --section"
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
    """Return the model that optimizer number `number` trains, or None if that is unknown."""
    owners = [section for section in sections.owners[number] if not _is_copy(section, sections)]
    if not sections.owners[number] and len(sections.models) == len(sections.optimizers) == 1:
        return sections.models[0]
    called = [section for section in owners if is_model_word(section.word)]
    found = owners if len(owners) == 1 else called
    return found[0] if len(found) == 1 else None


def _is_copy(section: Section, sections: Sections) -> bool:
    """Return whether a model is an average of another model's weights, such as an EMA."""
    return any(map(is_copy_word, section.path)) and any(
        other is not section and other.known & section.known for other in sections.models
    )


def _are_trained_apart(sections: Sections, trained: Sequence[Section]) -> bool:
    """Return whether two of the models in `trained` have different optimizers."""
    if len(trained) < 2:
        return False
    owned = {frozenset(map(id, owners)) for owners in sections.owners if owners}
    return len(owned) > 1 or _are_rivals(
        [o for o, owners in zip(sections.optimizers, sections.owners, strict=True) if owners]
    )


def _are_rivals(optimizers: Sequence[OptimizerSection]) -> bool:
    """Return whether two of the optimizers have the same kind of state, such as `exp_avg`, for the
    same parameter.
    """
    seen: set[tuple[str, str]] = set()
    for optimizer in optimizers:
        mine = set(optimizer.state.values())
        if seen & mine:
            return True
        seen |= mine
    return False


def optimizers_of_model(sections: Sections, model: Section) -> list[OptimizerSection]:
    """Return the optimizers that train the model.

    If two of them have state for the same parameters, return only the one with a general name such
    as `optimizer`. Return an empty list if none of them, or several, have a general name.
    """
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


def _notes_on_choice(sections: Sections, chosen: Section) -> Iterator[str]:
    """Yield notes that tell the user why `chosen` was chosen as the model. There is no note on the
    choice if `chosen` is the only model and has the usual name.
    """
    not_chosen = [section for section in sections.models if section is not chosen]
    loose = [
        section
        for section in sections.others
        if section.path == chosen.path or any(t.shape for t in section.tensors.values())
    ]
    if not_chosen:
        names = [section.label for section in not_chosen]
        yield (
            f"took the section {_section_summary(sections, chosen)}; "
            f"not taken: {_listed(sections, not_chosen)}; "
            f"--section {names[0]} takes {'it' if len(names) == 1 else 'the first'} instead"
        )
    elif chosen.path not in ((), ("model",)):
        yield f"took the section {_section_summary(sections, chosen)} for the model"
    if loose:
        yield f"next to the weights there is state of the run: {_names(loose)}"


def _names(sections: Sequence[Section]) -> str:
    flats = [flat for section in sections for flat in section.names]
    more = f" and {len(flats) - _MAX_LISTED} more" if len(flats) > _MAX_LISTED else ""
    return ", ".join(flat[:80] for flat in flats[:_MAX_LISTED]) + more


def _listed(sections: Sections, listed: Sequence[Section]) -> str:
    more = f" and {len(listed) - _MAX_LISTED} more" if len(listed) > _MAX_LISTED else ""
    return ", ".join(_section_summary(sections, section) for section in listed[:_MAX_LISTED]) + more


def _section_summary(sections: Sections, section: Section) -> str:
    """Return a description such as `generator (12 tensors, 3,500 elements, float32, trained by
    optimizer_g)`.
    """
    count = len(section.tensors)
    elements = 0
    for tensor in section.tensors.values():
        size = 1
        for n in tensor.shape:
            size *= n
        elements += size
    types = sorted({tensor.dtype.name for tensor in section.tensors.values()})
    facts = [f"{count} tensor{'s' if count != 1 else ''}", f"{elements:,} elements", *types[:3]]
    facts += [
        f"trained by {optimizer.label}" for optimizer in optimizers_of_model(sections, section)[:3]
    ]
    label = section.label if section.label != ROOT else f"{ROOT} (the top level)"
    return f"{label[:80]} ({', '.join(facts)})"
