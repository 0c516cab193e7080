"""Class tools, with and without a model for their configuration."""


class Schema:
    """As the older product's schema is: a model with types in capitals."""

    def model_dump(self, exclude_none=False):
        assert exclude_none
        return {
            "type": "OBJECT",
            "properties": {
                "n": {"type": "INTEGER", "min_length": 1},
                "type": {"type": "STRING"},
                "many": {"type": "ARRAY", "items": {"any_of": [{"type": "NUMBER"}, {"type": "NULL"}]}},
            },
            "required": ["n"],
        }


class Info:
    def __init__(self, is_list):
        self.is_list, self.is_optional = is_list, False


class Model:
    def __init__(self, **values):
        if "dsn" not in values:
            raise ValueError("`dsn` is missing")
        self.dsn = values["dsn"]


class Query:
    config_model = Model
    ctx_facade_param_name = "ctx"
    parameters_schema = Schema()
    artifact_params = {"doc": Info(False), "docs": Info(True)}
    tool_description = "not initialised"

    def __init__(self, tool_config=None):
        self.config = tool_config

    async def init(self, component, tool_config):
        print("printed in init")
        self.tool_description = "Queries " + tool_config["dsn"]

    async def cleanup(self, component, tool_config):
        raise RuntimeError("cleanup never stands in the way")

    async def _run_async_impl(self, args, tool_context=None, credential=None):
        return {
            "dsn": self.config.dsn, "n": args["n"], "context": tool_context, "user": args["ctx"].user_id,
            "doc": args["doc"].as_text(), "docs": [one.filename for one in args["docs"]], "described": self.tool_description,
        }


class Plain:
    tool_name = "plain"

    def __init__(self, tool_config=None):
        self.config = tool_config

    async def _run_async_impl(self, args, tool_context=None):
        return str(sorted(args.items()))


class Broken(Plain):
    async def init(self, component, tool_config):
        raise RuntimeError("no database")


class Provider:
    def get_all_tools_for_framework(self, tool_config=None):
        second = Plain(tool_config)
        second.tool_name = "second"
        return [Plain(tool_config), second]
