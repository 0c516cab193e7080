"""Uses a sandbox that stays, over HTTP, with nothing but the standard library.

  airlock serve                                     # prints the address and, once, the key
  AIRLOCK_URL=http://127.0.0.1:7070 AIRLOCK_KEY=… python3 examples/session.py
"""
import json, os, urllib.request

url, key = os.environ["AIRLOCK_URL"] + "/v1/sandboxes", os.environ["AIRLOCK_KEY"]


def ask(method, path="", body=None):
    """Sends JSON or bytes; returns the answer's bytes."""
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    request = urllib.request.Request(url + path, data, {"Authorization": "Bearer " + key}, method=method)
    with urllib.request.urlopen(request) as answer:
        return answer.read()


sandbox = "/" + json.loads(ask("POST", body={"memory": "256M", "lifetime": "10m"}))["sandbox_id"]
try:
    ask("PUT", sandbox + "/files/numbers.txt", b"1\n2\n3\n")
    program = "print(sum(map(int, open('numbers.txt'))), file=open('sum.txt', 'w'))"
    result = json.loads(ask("POST", sandbox + "/exec", {"command": ["python3", "-c", program]}))
    print(result["status"], result["exit_code"])
    print(ask("GET", sandbox + "/files/sum.txt").decode(), end="")
finally:
    ask("DELETE", sandbox)
