"""MODULE:ATTR to the Worker that it names."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from echomq_worker.cli import HandlersFailed
from echomq_worker.errors import ConfigError, InvalidArgument, InvalidQueueName

if TYPE_CHECKING:
    from echomq_worker.worker import Worker


def load_worker(target: str) -> Worker:
    """Import MODULE, with the current directory first on the path, and return its ATTR.

    Raises ConfigError for a target of another form, a module that is not there, a handler that cannot be registered, or
    an attribute that is no Worker with handlers; HandlersFailed, with the cause, for whatever the module itself raises.
    """
    module_name, attribute = split_target(target)
    where = str(here())
    if where not in sys.path:
        sys.path.insert(0, where)
    found = _import(module_name, target, where)
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise ConfigError(f"{target!r}: {module_name} has no {attribute}{_workers_in(found, module_name)}")
        found = getattr(found, name)
    return _checked(found, target)


def here() -> Path:
    """The current directory. Raises ConfigError where it is gone, or may not be looked at."""
    try:
        return Path.cwd()
    except OSError as error:
        raise ConfigError(
            f"the current directory: {error.strerror}, expected one, as handlers are looked for there"
        ) from None


def split_target(target: str) -> tuple[str, str]:
    """MODULE and ATTR; nothing is imported. Raises ConfigError for a target of another form."""
    module_name, colon, attribute = target.partition(":")
    if module_name.endswith(".py"):
        hint = ".".join(Path(module_name).with_suffix("").parts)
        raise ConfigError(f"{target!r}: expected MODULE:ATTR, a module's name and not a file, such as {hint}:worker")
    names = module_name.split(".")
    if not colon or not attribute or not all(name.isidentifier() for name in names):
        raise ConfigError(f"{target!r}: expected MODULE:ATTR, such as app:worker")
    return module_name, attribute


def _import(module_name: str, target: str, where: str) -> object:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # Only when the module itself, or a package it is in, is missing: one that it imports in vain is an error of its
        # own.
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(f"{target!r}: no module {error.name!r}, neither in {where} nor on the path") from None
        raise HandlersFailed(f"{target!r}: importing {module_name} failed: {error}") from error
    except (ConfigError, InvalidArgument, InvalidQueueName) as error:
        # Errors of the registration say what is wrong; a traceback would only hide that.
        raise ConfigError(f"{target!r}: {_place(error)}{error}") from error
    except (Exception, SystemExit) as error:
        raise HandlersFailed(
            f"{target!r}: importing {module_name} failed with {type(error).__name__}, its trace is above"
        ) from error


def _place(error: Exception) -> str:
    """The line outside of this package from which it came."""
    ours = (str(Path(__file__).parents[1]), str(Path(importlib.__file__).parent), "<")
    frames = [one for one in traceback.extract_tb(error.__traceback__) if not one.filename.startswith(ours)]
    return f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""


def _workers_in(found: object, module_name: str) -> str:
    """Which targets there would be."""
    from echomq_worker.worker import Worker

    names = (
        [name for name, value in vars(found).items() if isinstance(value, Worker)] if hasattr(found, "__dict__") else []
    )
    if not names:
        return ", nor any other Worker"
    return f", expected {' or '.join(f'{module_name}:{name}' for name in names[:3])}"


def _checked(found: object, target: str) -> Worker:
    from echomq_worker.worker import Worker

    if not isinstance(found, Worker):
        raise ConfigError(f"{target!r} is of type {type(found).__name__}, expected a Worker")
    if not list(found.handlers):
        raise ConfigError(f"{target!r} has no handlers: expected functions decorated with @worker.handler(QUEUE)")
    return found
