"""Asks a model through the LLM door: runs inside the sandbox, and is started by model.sh."""
import json, os, sys, urllib.error, urllib.request

base = os.environ["ANTHROPIC_BASE_URL"]


def call(path, body=None):
    """Calls the door. The key is a placeholder, which the door replaces outside."""
    headers = {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "anthropic-version": "2023-06-01",
               "content-type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(base + path, data, headers)) as answer:
        return json.load(answer)


try:
    answer = call("/v1/messages", {"model": os.environ["MODEL"], "max_tokens": 300,
                                   "messages": [{"role": "user", "content": sys.argv[1]}]})
except urllib.error.HTTPError as error:
    sys.exit(f"{error.code} {error.headers['x-airlock-error']}")
print("".join(part.get("text", "") for part in answer["content"]))
print("left:", call("/door/v1/budget")["left_usd"], "USD", file=sys.stderr)
