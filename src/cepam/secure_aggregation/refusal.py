"""Why a stage was refused: a fixed code that depends on public data only."""

from __future__ import annotations

from typing import Literal, get_args

from cepam.errors import CepamError

RefusalKind = Literal["policy", "cohort", "unsigned", "position", "quorum", "share", "commitment"]
KINDS: tuple[RefusalKind, ...] = get_args(RefusalKind)


class SecAggRefused(CepamError):
    """A stage that does not go on. `kind` may travel; the text stays where it was raised.

    terms: the offer is below the node's floor, or its rounds are spent. cohort: names, keys or sizes do not fit.
    unsigned: a key without a valid signature. position: a round that is not open, or was used. quorum: too few left.
    share: a share does not open. commitment: shares that do not give the committed seed.
    """

    def __init__(self, kind: RefusalKind, reason: str) -> None:
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {kind!r}")
        super().__init__(f"{kind}: {reason}")
        self.kind = kind
