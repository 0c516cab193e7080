import re
def half(text):
    return bytes.fromhex(text)

tell(ask('POST', '/v1/chat/completions', chat())[0])
tell(ask('GET', '/v1/models')[0])
open('/tmp/here', 'wb').write(half(THERE[0]) + half(THERE[1]))
held = half(THERE[0]) + half(THERE[1])

def hits(first, second):
    found = []
    def look(place, data):
        at = data.find(first)
        while at >= 0:
            if data[at + len(first):at + len(first) + len(second)] == second:
                found.append(place)
                return
            at = data.find(first, at + 1)
    look('environment', repr(os.environ).encode())
    for pid in filter(str.isdigit, os.listdir('/proc')):
        for name in ('environ', 'cmdline'):
            try:
                look('process', open(f'/proc/{pid}/{name}', 'rb').read())
            except OSError:
                pass
    with open('/proc/self/mem', 'rb', 0) as memory:
        for line in open('/proc/self/maps'):
            begin, end, rights = re.match('([0-9a-f]+)-([0-9a-f]+) (....)', line).groups()
            if rights[0] == 'r' and '[v' not in line:
                memory.seek(int(begin, 16))
                try:
                    look('memory', memory.read(int(end, 16) - int(begin, 16)))
                except OSError:
                    pass
    for top in ('/tmp', '/workspace', '/etc', '/run', '/dev/shm', '/airlock', '/var', '/home', '/root'):
        for folder, _, names in os.walk(top):
            for name in names:
                path = os.path.join(folder, name)
                if os.path.isfile(path):
                    try:
                        look('file', open(path, 'rb').read())
                    except OSError:
                        pass
    return sorted(set(found))

tell(hits(half(THERE[0]), half(THERE[1])))
tell(hits(half(REAL[0]), half(REAL[1])))
