"""A chat template."""

from dataclasses import dataclass
import hashlib


@dataclass(frozen=True)
class ChatTemplate:
    text: str
    variables: dict[str, str]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()
