"""What a handler may be given: payloads of each kind, and what a lifespan yields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel
from typing_extensions import TypedDict


class Email(BaseModel):
    """A payload as a model."""

    kind: Literal["email"] = "email"
    to: str


class Sms(BaseModel):
    """Another one, told apart by its kind."""

    kind: Literal["sms"]
    number: int


@dataclass
class Order:
    """A payload as a dataclass."""

    amount: int


class Row(TypedDict):
    """A payload as a typed dict."""

    name: str


class Base:
    """What a state's class may derive from."""


class Resources(Base):
    """What a lifespan yields."""
