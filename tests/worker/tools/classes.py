"""A tool of the class kind, with a description and parameters of its own."""


class Greeter:
    ctx_facade_param_name = "ctx"

    def __init__(self, tool_config=None):
        self.tool_config = tool_config or {}

    @property
    def tool_name(self):
        return "greeter"

    @property
    def tool_description(self):
        return f"Greets in {self.tool_config.get('language', 'English')}."

    @property
    def parameters_schema(self):
        return {"type": "OBJECT", "properties": {"name": {"type": "STRING"}}, "required": ["name"]}

    async def init(self, component, tool_config):
        pass

    async def cleanup(self, component, tool_config):
        pass

    async def _run_async_impl(self, args, tool_context=None, **_more):
        return {"text": f"{self.tool_config.get('greeting', 'Hello')}, {args['name']}"}
