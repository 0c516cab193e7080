//! What hostile programs inside have in common: bytes by hand at the door, without any client's manners.

/// A beginning for programs in Python that [`World::python`](crate::World::python) runs.
///
/// | call | what it does |
/// |---|---|
/// | `door()` | a connection to the proxy |
/// | `head(stream)` | reads to the end of a head and not one byte more; empty at the end |
/// | `status(words)` | sends that to the proxy; the status of the answer, or `closed`, or `silent` |
/// | `connect(target)` | the status of a CONNECT to these bytes, and the connection |
/// | `socks(host, port)` | the reply to a name (text) or an address (bytes) by SOCKS, and the connection |
/// | `secure(stream, name)` | TLS with that name, trusting what the run trusts |
/// | `get(stream, host)` | asks for `/` by HTTP/1.0; the body |
/// | `said(call, *arguments)` | what it returned, or the kind of error |
/// | `each(call, list)` | the same for each, eight at a time, printed in order |
pub const RAW: &str = r#"
import concurrent.futures, os, socket, ssl, struct, sys, threading, time
def door():
    return socket.create_connection(('127.0.0.1', 3128), timeout=12)
def head(stream):
    read = b''
    while not read.endswith(b'\r\n\r\n'):
        byte = stream.recv(1)
        if not byte:
            return read
        read += byte
    return read
def code(answer):
    return answer.split(b' ')[1].decode() if answer.startswith(b'HTTP/') else 'closed'
def status(words):
    stream = door()
    try:
        stream.sendall(words)
        return code(head(stream))
    except TimeoutError:
        return 'silent'
    except OSError:
        return 'closed'
def connect(target):
    stream = door()
    if isinstance(target, str):
        target = target.encode()
    stream.sendall(b'CONNECT ' + target + b' HTTP/1.1\r\nHost: ' + target + b'\r\n\r\n')
    return code(head(stream)), stream
def socks(host, port):
    stream = door()
    stream.sendall(b'\x05\x01\x00')
    assert stream.recv(2) == b'\x05\x00'
    if isinstance(host, str):
        host = host.encode()
        where = b'\x03' + bytes([len(host)]) + host
    else:
        where = (b'\x01' if len(host) == 4 else b'\x04') + host
    stream.sendall(b'\x05\x01\x00' + where + struct.pack('>H', port))
    return stream.recv(10)[1], stream
def secure(stream, name):
    context = ssl.create_default_context(cafile=os.environ.get('SSL_CERT_FILE'))
    context.check_hostname = name is not None
    return context.wrap_socket(stream, server_hostname=name)
def get(stream, host):
    stream.sendall(f'GET / HTTP/1.0\r\nHost: {host}\r\n\r\n'.encode())
    answer = b''
    while piece := stream.recv(65536):
        answer += piece
    return answer.decode().partition('\r\n\r\n')[2].strip()
def said(call, *arguments):
    try:
        return call(*arguments)
    except OSError as error:
        return type(error).__name__
def each(call, of):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for told in pool.map(lambda one: said(call, one), of):
            print(told, flush=True)
"#;
