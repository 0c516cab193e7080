"""Tools as their authors write them with the public SDK, beside the examples that it carries."""

from typing import List, Optional

from sam_tool_sdk import (
    Artifact,
    DataDisposition,
    DataObject,
    DynamicTool,
    IPCError,
    SandboxToolContextFacade,
    ToolResult,
    tool_timeout,
)


@tool_timeout(9)
async def greet(name: str, excited: bool = False, ctx: SandboxToolContextFacade = None) -> ToolResult:
    """Greet someone by name."""
    ctx.send_status("greeting " + name)
    own = isinstance(ctx, SandboxToolContextFacade)
    return ToolResult.ok("hi " + name, data={"excited": excited, "user": ctx.user_id, "own": own})


def merge(parts: List[Artifact], title: Optional[str] = None) -> ToolResult:
    """Merge files."""
    whole = b"".join(part.as_bytes() for part in parts)
    made = DataObject("merged.bin", whole, "application/x-merged", DataDisposition.ARTIFACT, "of all")
    return ToolResult.ok(title or "merged", data_objects=[made, DataObject("note", "short", disposition=DataDisposition.INLINE)])


def think(ctx: SandboxToolContextFacade) -> ToolResult:
    """Ask a model."""
    try:
        return ToolResult.ok(ctx.call_llm("be brief", "say it"))
    except IPCError as error:
        return ToolResult.error(str(error), code="NO_MODEL")


class Shout(DynamicTool):
    tool_name = "shout"
    tool_description = "Shouts."
    parameters_schema = {"type": "object", "properties": {"times": {"type": "integer"}}}
    ctx_facade_param_name = "facade"

    async def _run_async_impl(self, args, tool_context=None, credential=None):
        return {"same": args["facade"] is tool_context, "times": args["times"], "config": self.tool_config}
