import http.client, json, os, socket, sys


def ask(method, path, body=None, headers={}, port=8080, socket_path=None):
    """One request to a door; its status and its body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    if socket_path:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(socket_path)
    data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
    connection.request(method, path, data, {"content-type": "application/json", **headers})
    answer = connection.getresponse()
    return answer.status, answer.read().decode(errors="replace")


def tell(what):
    print(json.dumps(what), flush=True)


def chat(model="m", **more):
    return {"model": model, "messages": [{"role": "user", "content": "hello"}], **more}
