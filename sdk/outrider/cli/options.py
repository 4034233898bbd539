"""Flags made from the tables of settings and of drafting options, and the flags that say what to load."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import attrs
import click
from attrs import AttrsInstance

from outrider import registry
from outrider.errors import ConfigurationError, InputError
from outrider.generation.drafting import AUTO, DraftingOptions
from outrider.generation.fields import FlagKind, option_flag, option_help
from outrider.generation.load import DTYPES
from outrider.generation.settings import RequestSettings
from outrider.loop.build import EngineOptions

__all__ = [
    "drafting",
    "drafting_options",
    "known_name",
    "model_options",
    "request_settings",
    "setting_flag",
    "setting_options",
]

F = TypeVar("F", bound=Callable[..., object])

_SCALARS = (str, float, int)


def setting_options(function: F) -> F:
    """``function`` with one flag for each field of `RequestSettings`; one that is not given arrives as None or ()."""
    return _table_options(RequestSettings, attrs.asdict(RequestSettings(), recurse=False), function)


def drafting_options(function: F) -> F:
    """``function`` with one flag for each field of `DraftingOptions`; one that is not given arrives as None."""
    return _table_options(DraftingOptions, attrs.asdict(DraftingOptions(), recurse=False), function)


def request_settings(flags: Mapping[str, object]) -> RequestSettings:
    """The settings that the flags of `setting_options` ask for.

    Raises:
        UsageError: a value that is not allowed; all at once.
    """
    try:
        settings = RequestSettings().override(_given(flags, RequestSettings.names()))
        settings.check()
    except InputError as error:
        raise click.UsageError(str(error)) from error
    return settings


def drafting(flags: Mapping[str, object]) -> DraftingOptions:
    """What the flags of `drafting_options` ask for.

    Raises:
        UsageError: a value that is not allowed; all at once.
    """
    try:
        return DraftingOptions.of(_given(flags, DraftingOptions.names()))
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error


def _given(flags: Mapping[str, object], names: Sequence[str]) -> dict[str, object]:
    return {name: value for name, value in flags.items() if name in names and value is not None and value != ()}


def _table_options(table: type[AttrsInstance], defaults: Mapping[str, object], function: F) -> F:
    hints: dict[str, object] = get_type_hints(table)
    for attribute in reversed(attrs.fields(table)):
        name = attribute.name
        help_text = option_help(attribute, defaults[name])
        function = setting_flag(name, hints[name], help_text, option_flag(attribute))(function)
    return function


def model_options(function: F) -> F:
    """``function`` with the flags that say which models run, where and how."""
    sizes = EngineOptions()
    for decorate in reversed(
        (
            click.option(
                "--target", metavar="DIR", help="Directory, hub id or installed pair.  [default: the embedded pair]"
            ),
            click.option(
                "--draft",
                metavar="DIR",
                default="auto",
                show_default=True,
                help="Directory or hub id; 'none' drafts nothing, 'auto' takes the draft of the pair.",
            ),
            click.option("--batch-size", type=click.IntRange(min=1), help=_batch_help(sizes)),
            click.option(
                "--dtype",
                type=click.Choice(list(DTYPES)),
                default="auto",
                show_default=True,
                help="Dtype of the models.",
            ),
            click.option("--device", default="auto", show_default=True, help="Where they run: cpu, cuda, cuda:1."),
            click.option(
                "--attention",
                default=AUTO,
                show_default=True,
                metavar="NAME",
                callback=known_name(registry.ATTENTION, AUTO),
                help="Attention backend; 'auto' takes Triton's kernels on a CUDA device, PyTorch's elsewhere.",
            ),
            click.option(
                "--runner",
                default=AUTO,
                show_default=True,
                metavar="NAME",
                callback=known_name(registry.RUNNERS, AUTO),
                help="How passes are run; 'auto' replays CUDA graphs on a CUDA device.",
            ),
            click.option(
                "--page-size",
                type=click.IntRange(min=1),
                default=sizes.page_size,
                show_default=True,
                help="Tokens in a page of KV memory.",
            ),
            click.option(
                "--max-length",
                type=click.IntRange(min=2),
                help="Most tokens of a sequence, prompt included.  [default: the target's context]",
            ),
            click.option("--allow-pickle", is_flag=True, help="Load pickled weights, which can run code."),
        )
    ):
        function = decorate(function)
    return function


def known_name(group: registry.Group[F], *also: str) -> Callable[[click.Context, click.Parameter, str], str]:
    """A check that an option names a member of ``group``, or is one of ``also``; anything else is bad usage."""

    def check(ctx: click.Context, param: click.Parameter, value: str) -> str:
        known = (*also, *registry.names(group))
        if value not in known:
            raise click.BadParameter(
                f"unknown {group.noun} '{value}'; known are: {', '.join(known) or 'none'}", ctx, param
            )
        return value

    return check


def _batch_help(sizes: EngineOptions) -> str:
    return f"Most prompts that run at once.  [default: {sizes.max_batch_size} with --input, else 1]"


def setting_flag(name: str, hint: object, help_text: str, kind: FlagKind = "value") -> Callable[[F], F]:
    """A flag for a setting ``name`` of the type ``hint``; one that is not given arrives as None or ().

    ``kind``: what it takes, as in `outrider.generation.fields`.
    """
    flag = f"--{name.replace('_', '-')}"
    match kind:
        case "none":
            return _unchanged
        case "json file":
            return click.option(flag, name, type=_json_file, metavar="FILE", default=None, help=help_text)
        case "path":
            return click.option(flag, name, type=str, metavar="FILE", default=None, help=help_text)
        case "list":
            return click.option(flag, name, type=_list, metavar="LIST", default=None, help=help_text)
        case "value":
            pass
    members = _members(hint)
    if bool in members:
        return click.option(f"{flag}/--no-{flag.removeprefix('--')}", name, default=None, help=help_text)
    for member in members:
        if get_origin(member) is tuple:
            element = _members(get_args(member)[0])
            return click.option(
                flag,
                name,
                type=_type(element),
                metavar=_metavar(element),
                multiple=True,
                help=f"{help_text}  [repeatable]",
            )
    return click.option(flag, name, type=_type(members), metavar=_metavar(members), default=None, help=help_text)


def _unchanged(function: F) -> F:
    return function


def _members(hint: object) -> Sequence[object]:
    """The types of a union but None; of any other type, itself."""
    if get_origin(hint) in (Union, types.UnionType):
        return [member for member in get_args(hint) if member is not types.NoneType]
    return [hint]


def _type(members: Sequence[object]) -> object:
    """What `click.option` takes as the type of a setting of these types."""
    if len(members) == 1 and get_origin(members[0]) is Literal:
        return click.Choice(cast("tuple[str, ...]", get_args(members[0])))
    return next((scalar for scalar in _SCALARS if scalar in members), _json)


def _metavar(members: Sequence[object]) -> str | None:
    return "JSON" if _type(members) is _json else None


def _json(text: str) -> object:
    """The value of a flag whose setting is no plain number or string; what is not JSON is bad usage."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"{text!r} is not JSON: {error}") from error
    return value


def _json_file(path: str) -> object:
    """The value in the JSON file of a flag; one that cannot be read is bad usage."""
    try:
        content = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise click.BadParameter(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error
    try:
        value: object = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"{path} is not JSON: {error}") from error
    return value


def _list(text: str) -> object:
    """The values of a flag: numbers and words with commas between them, or a JSON list."""
    if text.lstrip().startswith("["):
        return _json(text)
    words = [word.strip() for word in text.split(",")]
    return [int(word) if word.removeprefix("-").isdecimal() else word for word in words]
