"""What the driver can drive: the verbs of one queue, or every control over three queues that flows join.

Source: issues "A worker that runs jobs" and "Every control".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support import driver_control_drain, driver_drain
from tests.support.driver_control_audit import LOOK
from tests.support.driver_control_steps import ControlDice
from tests.support.driver_flow_foreign import FOREIGN_FLOWS
from tests.support.driver_foreign import Everybody
from tests.support.driver_realm import Realm
from tests.support.driver_repeats import REPEAT_LOOK
from tests.support.driver_steps import POPULATION, Dice
from tests.support.driver_tokens import TOKEN_LOOK
from tests.support.driver_wire import Scripts
from tests.support.driver_world import Turn

_CROWD = 4


@dataclass(frozen=True, slots=True)
class Kind:
    """`world` by a name, `dice` by a seed, the world, how much the foreign client does and whether there is a crowd;
    `drain` is a world's end; `texts` are scripts beside those of `driver_wire.sources`.
    """

    world: Callable[[str, Scripts], Any]
    dice: Callable[[str, Any, float, bool], Any]
    drain: Callable[[Any], Turn]
    texts: Mapping[str, str] = field(default_factory=dict)


def _dice(seed: str, world: Everybody, foreign: float, crowded: bool) -> Dice:
    return Dice(seed, world.model, foreign, POPULATION * (_CROWD if crowded else 1))


VERBS = Kind(Everybody, _dice, driver_drain.drain)
CONTROLS = Kind(
    Realm,
    lambda seed, realm, foreign, crowded: ControlDice(seed, realm, foreign, crowd=_CROWD if crowded else 1),
    driver_control_drain.drain,
    {"audit:controls": LOOK, "audit:tokens": TOKEN_LOOK, "audit:repeats": REPEAT_LOOK, **FOREIGN_FLOWS},
)
