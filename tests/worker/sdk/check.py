"""Tools of the public SDK through our runner, as functions and classes: the SDK's own examples, and those beside this file.

    python3 check.py RUNNER FOLDER      FOLDER has sam_tool_sdk and its examples: ./fetch prints it

The SDK wants Python 3.10 or later.
"""

import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def marked(message, data=None, **more):
    """A result as the SDK writes it."""
    whole = {"_schema": "ToolResult", "_schema_version": "1.0", "status": "success", "message": message, "error_code": None}
    return dict(whole, **({"data": data} if data else {}), **more)


FILES = {"report.txt": "words", "a": "1", "b": "2"}
INLINE = {
    "name": "note", "content": "short", "is_binary": False, "mime_type": "text/plain", "disposition": "inline",
    "description": None, "preview": None, "metadata": None,
}
# module, function, class, arguments, files by parameter, result, names in output/
CASES = [
    ("artifact_inout_tool", "uppercase_file", None, {"doc": "report.txt"}, {"doc": "report.txt"},
     marked("Produced report_upper.txt (5 chars)"), ["report_upper.txt"]),
    ("artifact_inout_tool", "cli", None, {"doc": "report.txt"}, {"doc": "report.txt"},
     marked("Produced report_upper.txt (5 chars)"), ["report_upper.txt"]),
    ("config_schema_tool", "call_api", None, {"prompt": "x"}, {},
     marked("Would POST to b/completions (timeout=30.0s)", {"prompt": "x", "api_base": "b"}), []),
    ("numeric_params_tool", "top_n_average", None, {"values": [4, 8, 15], "top_n": "2"}, {},
     marked("Average of top 2 values: 11.5", {"average": 11.5, "selected": [15, 8], "top_n": 2}), []),
    ("multi_tool_provider", "add", "MathTools", {"a": "3.5", "b": "1.5"}, {}, marked("3.5 + 1.5 = 5.0", {"result": 5.0}), []),
    ("own_sdk_tools", "greet", None, {"name": "ana", "excited": "true"}, {},
     marked("hi ana", {"excited": True, "user": "ana", "own": True}), []),
    ("own_sdk_tools", "merge", None, {"parts": ["a", "b"]}, {"parts[0]": "a", "parts[1]": "b"},
     marked("merged", data_objects=[INLINE]), ["merged.bin"]),
    ("own_sdk_tools", "think", None, {}, {},
     dict(marked("LLM calls not available: no IPC connection to STR"), status="error", error_code="NO_MODEL"), []),
    ("own_sdk_tools", None, "Shout", {"times": "2"}, {}, {"same": True, "times": 2, "config": {"api_base": "b"}}, []),
]


def run(runner, tools, case, work):
    module, function, class_name, args, files, _, _ = case
    os.mkdir(os.path.join(work, "output"))
    about = {}
    for key, name in files.items():
        path = os.path.join(work, name)
        with open(path, "w") as file:
            file.write(FILES[name])
        about[key] = {"filename": name, "local_path": path, "mime_type": "text/plain", "version": 0}
    order = {
        "module": module, "function": function, "class_name": class_name, "args": args, "artifact_metadata": about,
        "tool_config": {"api_base": "b"}, "user_id": "ana", "session_id": "s", "app_name": "a", "status_pipe": "",
        "output_dir": os.path.join(work, "output"), "result_file": os.path.join(work, "result.json"),
    }
    with open(os.path.join(work, "args.json"), "w") as file:
        json.dump(order, file)
    path = os.pathsep.join([tools, os.path.join(HERE, "tools")])
    variables = dict(os.environ, PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1")
    said = subprocess.run([sys.executable, runner, os.path.join(work, "args.json")], env=variables, capture_output=True, text=True)
    with open(os.path.join(work, "result.json")) as file:
        envelope = json.load(file)
    assert said.returncode == 0 and not envelope.get("error"), (envelope, said)
    return envelope["result"], sorted(os.listdir(os.path.join(work, "output")))


def main():
    runner, tools = sys.argv[1:]
    for case in CASES:
        with tempfile.TemporaryDirectory() as work:
            found = run(runner, tools, case, work)
            assert found == case[5:], "%s:%s gave %r" % (case[0], case[1] or case[2], found)
    print("%d tools of the SDK ran as they should" % len(CASES))


main()
