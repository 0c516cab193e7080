"""Claims about the runner, made by running it as the host does, on tools that lie beside this file.

    python3 check.py RUNNER [unittest options]
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
RUNNER = os.path.abspath(sys.argv.pop(1)) if __name__ == "__main__" else ""
PATIENCE = 120  # long: it only matters when something hangs


class Case(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.work = tempfile.mkdtemp(prefix="airlock-runner-")
        self.addCleanup(shutil.rmtree, self.work)
        for name in ("input", "output"):
            os.mkdir(os.path.join(self.work, name))

    def path(self, *names):
        return os.path.join(self.work, *names)

    def order(self, what, args=None, **more):
        module, _, name = what.partition(":")
        order = {
            "module": module, "function": name, "args": args or {}, "tool_config": {}, "user_id": "ana",
            "session_id": "web-77", "app_name": "PhotoAgent", "result_file": self.path("result.json"),
            "output_dir": self.path("output"), "status_pipe": self.path("status.pipe"),
        }
        order.update(more)
        with open(self.path("runner_args.json"), "w") as file:
            json.dump(order, file)
        return self.path("runner_args.json")

    def staged(self, **files):
        """Puts files in: `parameter=(name, content)`, `_0` and so on being those of a list."""
        paths, about = {}, {}
        for key, (name, content) in files.items():
            base, _, at = key.rpartition("_")
            key = "%s[%s]" % (base, at) if at.isdigit() else key
            paths[key] = self.path("input", name)
            about[key] = {"filename": name, "mime_type": "text/plain", "version": 1, "local_path": paths[key]}
            with open(paths[key], "w") as file:
                file.write(content)
        return {"artifact_paths": paths, "artifact_metadata": about}

    def start(self, *arguments, **more):
        variables = dict(os.environ, PYTHONPATH=os.path.join(HERE, "tools"), AIRLOCK_OWN="1", PYTHONDONTWRITEBYTECODE="1")
        command = [sys.executable, RUNNER, *arguments]
        pipes = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.work)
        return subprocess.Popen(command, env=variables, **dict(pipes, **more))

    def runs(self, *arguments):
        program = self.start(*arguments)
        out, err = program.communicate(timeout=PATIENCE)
        return program.returncode, out.decode(), err.decode()

    def envelope(self, *given, **more):
        status, out, err = self.runs(self.order(*given, **more))
        self.assertEqual((status, err), (0, ""), out)
        path = self.path("result.json")
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
        self.assertEqual([name for name in os.listdir(self.work) if name.endswith(".new")], [])
        with open(path, encoding="utf-8") as file:
            return json.load(file, parse_constant=self.fail)

    def result(self, *given, **more):
        envelope = self.envelope(*given, **more)
        self.assertNotIn("error", envelope)
        return envelope["result"]

    def error(self, *given, **more):
        envelope = self.envelope(*given, **more)
        self.assertEqual(list(envelope), ["error"])
        self.assertNotIn(HERE, envelope["error"], "a path of this machine")
        self.assertNotIn(RUNNER, envelope["error"], "a frame of the runner's own")
        self.assertNotIn("runner.py", envelope["error"], "a frame of the runner's own")
        return envelope["error"]


class Results(Case):
    def test_a_result_of_any_kind_becomes_an_object(self):
        for what, text in [
            ("none", None), ("number", "7"), ("text", "hi"), ("list", "[1, 2]"), ("bytes", "plain"), ("raw", "/wA="),
            ("float", "nan"), ("false", "False"), ("enum", "Color.RED"), ("half", "?!"),
        ]:
            wanted = {"text": text, "data_objects": []}
            self.assertEqual(self.result("plain_tools:returns", {"what": what}), wanted, what)
        self.assertEqual(self.result("plain_tools:returns", {"what": "error"}), {"error": "of the tool's own"})

    def test_what_json_cannot_say_is_said_in_words(self):
        for what, value in [
            ("nan", "NaN"), ("infinite", ["Infinity", "-Infinity"]), ("huge", str(2**200)), ("big", 2**63),
            ("small", -(2**63)), ("bytes", "ab"), ("raw", "/w=="), ("set", [1, 2, 3]), ("decimal", "1.50"),
            ("when", "2026-11-16T12:00:00+00:00"), ("enum", "blue"), ("tuple", [1, [2]]), ("half", "a?b"),
            ("keys", {"1": "c", "null": "b", "(1, 2)": "d", "1.5": "e"}), ("half key", {"?": 1}),
            ("unprintable", "<Unprintable>"), ("class", "<enum 'Color'>"),
            ("object", {"name": "a", "content": "b", "mime_type": "text/plain", "disposition": "artifact", "description": None}),
        ]:
            self.assertEqual(self.result("plain_tools:strange", {"what": what})["value"], value, what)
        longest = self.result("plain_tools:strange", {"what": "longest"})["value"]
        self.assertEqual(int(longest, 16 if longest.startswith("0x") else 10) if longest.startswith("0x") else len(longest),
                         10**5000 if longest.startswith("0x") else 5001)

    def test_what_is_nested_too_deep_or_contains_itself_is_an_error(self):
        for what in ("circle", "deep"):
            self.assertIn("nested more than 100 levels", self.error("plain_tools:strange", {"what": what}))

    def test_data_objects_go_to_the_output_folder_and_those_inline_stay(self):
        envelope = self.envelope("plain_tools:with_objects")
        left = {"name": "c.txt", "content": "shown", "mime_type": "text/plain", "disposition": "inline", "description": None}
        self.assertEqual(envelope["result"], {"status": "success", "message": "made", "data_objects": [left]})
        self.assertEqual(envelope["artifacts"], [
            {"name": "a.csv", "mime_type": "text/csv", "description": "two numbers"}, {"name": "b.bin", "mime_type": "text/plain"},
        ])
        self.assertEqual(sorted(os.listdir(self.path("output"))), ["a.csv", "b.bin"])
        with open(self.path("output", "b.bin"), "rb") as file:
            self.assertEqual(file.read(), b"\xff")

    def test_names_that_are_no_plain_names_are_refused(self):
        for name in ["../x", "/x", "a/b", "a\\b", "", ".", "..", "a\nb", "a\0b", "x" * 201]:
            self.assertIn("no plain name", self.error("plain_tools:with_bad_name", {"name": name}), name)
        self.assertEqual(os.listdir(self.path("output")), [])
        self.assertEqual(self.result("plain_tools:with_bad_name", {"name": "ä b.txt"})["data_objects"], [])

    def test_a_link_in_the_way_of_an_output_is_not_followed(self):
        os.symlink(self.path("elsewhere"), self.path("output", "out.bin"))
        self.assertIn("Execution error", self.error("plain_tools:legacy", {"name": "doc"}, **self.staged(doc=("in.txt", "x"))))
        self.assertFalse(os.path.exists(self.path("elsewhere")))

    def test_a_result_that_cannot_be_put_there_ends_with_words(self):
        os.mkdir(self.path("result.json"))
        status, _, err = self.runs(self.order("plain_tools:echo", {"text": "a"}))
        self.assertEqual(status, 3)
        self.assertIn("the result cannot be written", err)


class Errors(Case):
    def test_errors_begin_with_what_went_wrong(self):
        for what, args, begins in [
            ("not_there:f", {}, "Import error: No module named 'not_there'"),
            ("lacks_module:f", {}, "Import error: No module named 'a_module_that_is_not_there'"),
            ("raises_at_import:f", {}, "Import error: RuntimeError: of the module"),
            ("no_syntax:f", {}, "Import error: SyntaxError: "),
            ("exits_at_import:f", {}, "Import error: SystemExit: 4"),
            ("plain_tools:absent", {}, "Not found: module 'plain_tools' has no attribute 'absent'"),
            ("plain_tools:not_callable", {}, "Call error: plain_tools.not_callable is not callable"),
            ("plain_tools:echo", {"no": 1, "text": "a"}, "Call error: echo() got an unexpected argument 'no'"),
            ("plain_tools:wants_text", {}, "Call error: wants_text() misses 1 required argument(s): 'text'"),
            ("plain_tools:fails", {"how": "value"}, "Execution error: of the tool's own\nTraceback (most recent call last)"),
            ("plain_tools:fails", {"how": "type"}, "Execution error: unsupported operand"),
            ("plain_tools:fails", {"how": "attribute"}, "Execution error: 'NoneType' object has no attribute"),
            ("plain_tools:fails", {"how": "import"}, "Execution error: No module named"),
            ("plain_tools:fails", {"how": "exit"}, "Execution error: the tool ended its program (exit 3)"),
            ("plain_tools:fails", {"how": "base"}, "Execution error: KeyboardInterrupt"),
            ("plain_tools:fails", {"how": "recursion"}, "Execution error: maximum recursion depth exceeded"),
            ("plain_tools:fails", {"how": "unprintable"}, "Execution error: <Silent>"),
            ("plain_tools:fails", {"how": "nothing"}, "Execution error: ValueError"),
            (":f", {}, "Call error: the order names no module"),
        ]:
            self.assertEqual(self.error(what, args)[: len(begins)], begins)

    def test_a_traceback_shows_the_tool_alone(self):
        error = self.error("plain_tools:fails", {"how": "chain"})
        self.assertIn('File "plain_tools.py", line ', error)
        self.assertIn('{}["absent"]', error)
        self.assertIn("The above exception was the direct cause", error)

    def test_long_errors_are_cut_and_say_so(self):
        error = self.error("plain_tools:fails", {"how": "long"})
        self.assertLess(len(error), 30_000)
        self.assertIn("characters left out", error)

    def test_an_order_that_cannot_be_read_is_told_by_the_exit_status(self):
        for content in [b"", b"{", b"[1]", b"{} {}", b"\xff", b"NaN"]:
            with open(self.path("runner_args.json"), "wb") as file:
                file.write(content)
            status, _, err = self.runs(self.path("runner_args.json"))
            self.assertEqual((status, err.startswith("airlock: the order cannot be read")), (2, True), content)
        self.assertEqual(self.runs("--no-such-thing")[0], 2)


class Arguments(Case):
    def test_plain_functions_are_called_by_name(self):
        self.assertEqual(self.result("plain_tools:echo", {"text": "a", "n": 3}), {"echo": "aaa"})
        self.assertEqual(self.result("plain_tools:echo_later", {"text": "a"}), {"echo": "a"})
        self.assertEqual(self.result("plain_tools:anything", {"x": 1}), {"given": {"x": 1}})
        self.assertEqual(self.result("plain_tools:by_place", {"a": 1, "b": 2}), {"values": [1, 2, 3]})
        self.assertEqual(self.result("plain_tools:instance", {"text": "a"}), {"called": "a"})
        self.assertEqual(self.result("plain_tools:bare_first", {"b": 5}), {"settings": None, "b": 5})

    def test_numbers_that_come_as_text_are_numbers(self):
        given = {"a": "5", "b": "1.5", "c": "false", "d": "7", "e": "8", "f": "9"}
        self.assertEqual(self.result("plain_tools:coerced", given)["values"], [5, 1.5, False, 7, "8", "9"])
        given = {"a": "five", "b": 2, "c": "TRUE", "d": None}
        self.assertEqual(self.result("plain_tools:coerced", given)["values"], ["five", 2, True, None, "", 0])

    def test_the_configuration_comes_by_its_name(self):
        found = self.result("plain_tools:configured", {"prompt": "a"}, tool_config={"key": "v"})
        self.assertEqual(found, {"prompt": "a", "config": {"key": "v"}})

    def test_artifacts_come_by_annotation(self):
        found = self.result("plain_tools:one_artifact", {"picture": "cat.png", "width": "3"}, **self.staged(picture=("cat.png", "meow")))
        wanted = {"content": "meow", "name": "cat.png", "version": 1, "mime": "text/plain", "own": True, "width": 3}
        self.assertEqual(found, wanted)
        several = self.staged(pictures_0=("a", "1"), pictures_1=("b", "2"))
        found = self.result("plain_tools:many_artifacts", {"pictures": ["a", "b"]}, **several)
        self.assertEqual(found, {"names": ["a", "b"], "more": None})
        self.assertEqual(self.result("plain_tools:maybe_artifact"), {"there": False})
        found = self.result("plain_tools:maybe_artifact", {"picture": "a"}, **self.staged(picture=("a", "1")))
        self.assertEqual(found, {"there": True})
        found = self.result("plain_tools:with_string_annotation", {"picture": "a"}, **self.staged(picture=("a", "1")))
        self.assertEqual(found, {"name": "a", "kind": "Artifact", "user": "ana"})
        found = self.result("postponed:tool", {"n": "2", "docs": ["a"]}, **self.staged(docs_0=("a", "1")))
        self.assertEqual(found, {"n": 2, "names": ["a"], "user": "ana"})

    def test_an_artifact_that_is_not_there_is_an_error(self):
        error = self.error("plain_tools:one_artifact", {"picture": "cat.png", "width": 1})
        self.assertEqual(error, "Call error: an artifact of the parameter 'picture' is not there")
        error = self.error("plain_tools:many_artifacts", {"pictures": ["a", "b"]}, **self.staged(pictures_0=("a", "1")))
        self.assertEqual(error, "Call error: an artifact of the parameter 'pictures' is not there")


class Contexts(Case):
    def test_the_older_context_has_files_by_parameter(self):
        staged = self.staged(doc=("in.txt", "words"))
        envelope = self.envelope("plain_tools:legacy", {"name": "doc"}, tool_config={"depth": 3}, **staged)
        self.assertEqual(envelope["result"], {
            "bytes": "words", "text": "words", "absent": None, "absent text": None, "list": ["doc"],
            "outputs": ["out.bin", "out.txt"], "user": ["ana", "web-77", "PhotoAgent"], "config": 3,
        })
        kinds = {one["name"]: one["mime_type"] for one in envelope["artifacts"]}
        self.assertEqual(kinds, {"out.bin": "application/x-own", "out.txt": "text/plain"})

    def test_a_first_parameter_of_any_kind_gets_a_context_for_both_ways(self):
        staged = self.staged(doc=("in.txt", "words"))
        self.assertEqual(self.result("plain_tools:any_context", {"name": "doc"}, **staged), {"bytes": "words", "absent": True})
        self.assertEqual(self.result("plain_tools:any_context_later", {"name": "doc"}, **staged), {
            "awaited": "words", "used": "words", "text": "words", "names": ["in.txt"], "keys": ["doc"],
            "absent": "not found", "is nothing": True, "exists": True,
        })

    def test_the_facade_has_everything(self):
        more = dict(
            tool_config={"depth": 3, "name": "n", "digits": "12", "flag": "true"}, task_id="t-1", tool_oauth_token="tok",
            volume_mounts=[{"volume_id": "v", "mount_path": "/cache", "read_only": True}],
            a2a_user_config=json.dumps({"user_profile": {"id": "ana"}}),
        )
        found = self.result("plain_tools:with_facade", {"name": "in.txt"}, **more, **self.staged(doc=("in.txt", "words")))
        self.assertEqual(found, {
            "text": "words", "exact": "words", "named": "words", "names": ["in.txt"], "exists": [True, False], "raw": None,
            "about": {"filename": "in.txt", "mime_type": "text/plain", "size_bytes": 5, "version": 1}, "signal": False,
            "state": {"a2a_context": {"a2a_user_config": {"user_profile": {"id": "ana"}}}}, "profile": {"id": "ana"},
            "task": "t-1", "token": ["tok", "tok"], "volumes": [["v", "/cache", True]], "path": ["/cache", None],
            "config": [3, 1, "n", "-", 3, 12, 4, 3.0, True, False],
        })

    def test_statuses_go_through_the_pipe_and_are_cut_to_what_it_takes_whole(self):
        os.mkfifo(self.path("status.pipe"))
        reader = os.open(self.path("status.pipe"), os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        self.assertEqual(self.result("plain_tools:says_status", {"long": 9000}), {"sent": [True, True]})
        first, second = os.read(reader, 65536).splitlines()
        self.assertEqual(json.loads(first), {"status": "one"})
        self.assertLess(len(second), 4096)
        self.assertEqual(json.loads(second)["status"].strip("twoé"), "…")

    def test_nobody_waits_for_who_does_not_listen(self):
        self.assertEqual(self.result("plain_tools:says_status"), {"sent": [False, False]})
        os.mkfifo(self.path("status.pipe"))
        self.assertEqual(self.result("plain_tools:says_status"), {"sent": [False, False]})
        reader = os.open(self.path("status.pipe"), os.O_RDONLY | os.O_NONBLOCK)
        writer = os.open(self.path("status.pipe"), os.O_WRONLY | os.O_NONBLOCK)
        for descriptor in (reader, writer):
            self.addCleanup(os.close, descriptor)
        with self.assertRaises(BlockingIOError):
            while True:
                os.write(writer, b"x" * 4096)
        self.assertEqual(self.result("plain_tools:says_status"), {"sent": [False, False]})

    def test_a_model_is_asked_through_the_socket(self):
        for answer, wanted in [
            ({"result": {"text": "42"}}, {"text": "42"}),
            ({"error": {"code": -32000, "message": "the budget is spent"}}, "the budget is spent (-32000)"),
            ({"result": {}}, "the answer has no text"),
            (None, "the answer did not come whole"),
        ]:
            asked = self.answering(answer)
            given = ("plain_tools:asks_model", {})
            if isinstance(wanted, dict):
                self.assertEqual(self.result(*given, ipc_socket=self.path("ipc.sock")), wanted)
            else:
                self.assertIn(wanted, self.error(*given, ipc_socket=self.path("ipc.sock")))
            params = {"system_prompt": "be brief", "user_prompt": "what is 6 x 7?", "temperature": 0.7}
            self.assertEqual(asked(), {"jsonrpc": "2.0", "id": "1", "method": "llm/call", "params": params})
            os.unlink(self.path("ipc.sock"))
        self.assertIn("no model is to be had", self.error("plain_tools:asks_model", ipc_socket=self.path("ipc.sock")))
        self.assertIn("no model is to be had", self.error("plain_tools:asks_model"))

    def answering(self, answer):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.path("ipc.sock"))
        listener.listen()
        heard = []

        def serve():
            line, _ = listener.accept()
            with listener, line, line.makefile("rb") as lines:
                heard.append(json.loads(lines.readline()))
                if answer is not None:
                    line.sendall(json.dumps(dict(answer, jsonrpc="2.0", id="1")).encode() + b"\n")

        thread = threading.Thread(target=serve)
        thread.start()

        def asked():
            thread.join(PATIENCE)
            return heard[0]

        return asked


class Classes(Case):
    def test_a_class_is_constructed_and_run(self):
        staged = self.staged(doc=("in.txt", "words"), docs_0=("a", "1"))
        args = {"n": "4", "doc": "in.txt", "docs": ["a"]}
        more = dict(function=None, class_name="Query", tool_config={"dsn": "db"}, **staged)
        self.assertEqual(self.result("class_tools:", args, **more), {
            "dsn": "db", "n": 4, "context": None, "user": "ana", "doc": "words", "docs": ["a"], "described": "not initialised",
        })
        error = self.error("class_tools:", {}, function=None, class_name="Query")
        self.assertEqual(error, "Execution error: the tool's configuration does not fit: `dsn` is missing")
        found = self.result("class_tools:", {"a": 1}, function=None, class_name="Plain")
        self.assertEqual(found, {"text": "[('a', 1)]", "data_objects": []})

    def test_a_provider_has_several_tools(self):
        found = self.result("class_tools:second", {"a": 1}, class_name="Provider")
        self.assertEqual(found["text"], "[('a', 1)]")
        found = self.result("class_tools:", {"a": 2}, class_name="Provider", tool_name="plain")
        self.assertEqual(found["text"], "[('a', 2)]")
        self.assertIn("Not found: Provider has the tools plain, second", self.error("class_tools:x", class_name="Provider"))

    def test_init_says_what_there_is_in_json_schema(self):
        status, out, _ = self.runs(self.order("class_tools:", init_mode=True, class_name="Query", tool_config={"dsn": "db"}))
        self.assertEqual(status, 0, out)
        with open(self.path("result.json")) as file:
            found = json.load(file)["result"]
        schema = {
            "type": "object", "required": ["n"],
            "properties": {
                "n": {"type": "integer", "minLength": 1}, "type": {"type": "string"},
                "many": {"type": "array", "items": {"anyOf": [{"type": "number"}, {"type": "null"}]}},
            },
        }
        self.assertEqual(found["parameters_schema"], schema)
        self.assertEqual((found["tool_description"], found["ctx_facade_param_name"]), ("Queries db", "ctx"))
        error = self.error("class_tools:", init_mode=True, class_name="Broken")
        self.assertEqual(error.splitlines()[0], "Init error: no database")

    def test_a_class_is_described_on_one_line(self):
        with open(self.path("config.json"), "w") as file:
            json.dump({"dsn": "db"}, file)
        status, out, err = self.runs("--schema-class", "class_tools", "Query", self.path("config.json"))
        found = json.loads(out)
        self.assertEqual((status, found["description"], found["parameters"]["type"]), (0, "Queries db", "object"))
        self.assertEqual(found["artifact_params"]["docs"], {"is_list": True, "is_optional": False})
        self.assertIn("printed in init", err)
        status, out, err = self.runs("--schema-class", "class_tools", "Broken")
        self.assertEqual((status, out, "Init error: no database" in err), (1, "", True))


class Descriptions(Case):
    def described(self, module, name):
        status, out, err = self.runs("--describe", module, name)
        self.assertEqual((status, out.count("\n")), (0, 1), err)
        return json.loads(out)

    def test_a_function_says_what_it_takes(self):
        self.assertEqual(self.described("plain_tools", "documented"), {
            "description": "Forecast for a city.", "instructions": "Use for weather only.\n\nReturns:\n    A forecast.",
            "parameters": {
                "type": "object", "required": ["city"],
                "properties": {
                    "city": {"type": "string", "description": "Where, and in which country."},
                    "days": {"type": "integer", "default": 3, "description": "How many days."},
                    "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "extra": {"type": "object"},
                },
            },
        })

    def test_kinds_of_parameters(self):
        found = self.described("plain_tools", "described")
        properties = found["parameters"]["properties"]
        self.assertEqual(list(properties), ["shape", "color", "when", "either", "doc", "docs"])
        self.assertEqual(properties["shape"]["required"], ["name", "content"])
        self.assertEqual(properties["color"]["enum"], ["red", "blue"])
        self.assertEqual(properties["when"], {"type": "string", "format": "date-time"})
        self.assertEqual(properties["either"], {"anyOf": [{"type": "integer"}, {"type": "string"}]})
        self.assertEqual(found["artifact_params"], {
            "doc": {"is_list": False, "is_optional": False}, "docs": {"is_list": True, "is_optional": True},
        })

    def test_annotations_that_are_text_are_understood(self):
        found = self.described("postponed", "tool")
        self.assertEqual(found["parameters"]["properties"]["n"], {"type": "integer"})
        self.assertEqual(found["artifact_params"], {"docs": {"is_list": True, "is_optional": True}})
        self.assertEqual(found["ctx_facade_param_name"], "ctx")
        self.assertEqual(found["parameters"]["required"], ["n"])

    def test_what_cannot_be_described_says_why(self):
        status, out, err = self.runs("--describe", "not_there", "f")
        self.assertEqual((status, out, err.strip()), (1, "", "airlock: Import error: No module named 'not_there'"))


class Endings(Case):
    def test_threads_that_are_left_hold_nothing_up_and_output_is_flushed(self):
        status, out, _ = self.runs(self.order("plain_tools:leaves_threads"))
        self.assertEqual((status, out), (0, "printed while it was imported\nnot flushed yet"))

    def test_a_child_that_was_forked_and_forgotten_writes_no_result(self):
        self.assertEqual(self.result("plain_tools:forks"), {"parent": True})

    def test_nothing_of_ours_is_in_the_tools_way(self):
        found = self.result("plain_tools:sees")
        self.assertEqual((found["argv"], found["airlock"]), (1, []))
        self.assertNotIn(os.path.dirname(RUNNER), found["path"])

    def test_parked_it_waits_for_one_order(self):
        program = self.start("--park", "plain_tools", "echo", stdin=subprocess.PIPE)
        self.assertEqual(program.stdout.readline(), b"ready\n")
        program.stdin.write(self.order("plain_tools:echo", {"text": "a"}).encode() + b"\n")
        out, err = program.communicate(timeout=PATIENCE)
        self.assertEqual((program.returncode, out, err), (0, b"", b"printed while it was imported\n"))
        with open(self.path("result.json")) as file:
            self.assertEqual(json.load(file), {"result": {"echo": "a"}})

    def test_parked_with_another_order_it_runs_that_one(self):
        program = self.start("--park", "plain_tools", "echo", stdin=subprocess.PIPE)
        self.assertEqual(program.stdout.readline(), b"ready\n")
        order = self.order("class_tools:", {"a": 1}, class_name="Plain")
        program.communicate(order.encode() + b"\n", timeout=PATIENCE)
        with open(self.path("result.json")) as file:
            self.assertEqual(json.load(file)["result"]["text"], "[('a', 1)]")

    def test_parked_for_nobody_it_ends(self):
        program = self.start("--park", "plain_tools", "echo", stdin=subprocess.PIPE)
        self.assertEqual(program.stdout.readline(), b"ready\n")
        program.communicate(timeout=PATIENCE)
        self.assertEqual(program.returncode, 0)

    def test_what_cannot_be_parked_says_why_on_one_line(self):
        status, out, _ = self.runs("--park", "raises_at_import", "f")
        self.assertEqual((status, out.count("\n")), (1, 1))
        self.assertTrue(out.startswith("failed Import error: RuntimeError: of the module"), out)


if __name__ == "__main__":
    unittest.main()
