"""Annotations that are text, some of which nobody can understand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from somewhere import Artifact, ToolContextFacade, Unknown


def tool(n: int, docs: Optional[list[Artifact]], unknown: Unknown = None, ctx: ToolContextFacade = None) -> Unknown:
    """Counts."""
    return {"n": n, "names": [one.filename for one in docs], "user": ctx.user_id}
