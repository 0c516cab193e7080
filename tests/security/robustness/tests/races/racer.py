"""Plants what must not stay in a folder, and exchanges names in it as fast as it can: racer.py FOLDER OUTSIDE MODE.

FOLDER is where it works, OUTSIDE the path of a folder that it must not reach, by its name on the host. MODE is what it does:

    once     plant everything, exchange for some milliseconds, and leave two processes that go on until they are killed
    on       say so on standard output, exchange until standard input ends, with pauses in which another run can start,
             and leave one that goes on
    clean    a control: goes by path, as nobody should: looks at a file, and copies what has that name a moment later
             to FOLDER/../held
"""

import ctypes
import os
import random
import select
import socket
import sys
import time

folder, outside, mode = sys.argv[1:4]
os.chdir(folder)
renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
HERE, EXCHANGE = -100, 2

FOLDERS = [b"d", b"d/e", b"d/e/f", b"g", b"g/.vscode", b".artifacts", b"new\nline"]
FILES = [b"f", b"suid", b"d/suid", b"d/e/.envrc", b"g/.vscode/tasks.json", b".artifacts/made", b"new\nline/.envrc", b"last"]
LINKS = {
    b"up": b"../../outside",
    b"far": os.fsencode(outside),
    b"d/up": b"../../../outside/secret",
    b"d/e/far": os.fsencode(outside) + b"/secret",
    b".idea": os.fsencode(outside),
    b"g/.envrc": os.fsencode(outside) + b"/secret",
}
# What is not its own: it may be moved, not changed.
THEIRS = [b"keep", b"theirs"]
if os.path.exists("../beside"):
    THEIRS += [b"../beside"]
NAMES = FOLDERS + FILES + list(LINKS) + THEIRS + [b"fifo", b"socket"]


def attempt(act, *words):
    try:
        act(*words)
    except OSError:
        pass


def write(name):
    with open(name, "xb") as file:
        file.write(b"planted\n")
    os.chmod(name, 0o6777)


def append(name):
    file = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
    os.write(file, b"written by the program\n")
    os.close(file)


def listen(name):
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(name)


def plant():
    for name in FOLDERS:
        attempt(os.mkdir, name)
    for name in FILES:
        attempt(write, name)
    for name, target in LINKS.items():
        attempt(os.symlink, target, name)
    attempt(os.mkfifo, b"fifo")
    attempt(listen, b"socket")


def race(until):
    count = 0
    while not until(count):
        count += 1
        a, b = random.sample(NAMES, 2)
        renameat2(HERE, a, HERE, b, EXCHANGE)
        if count % 16 == 0:
            attempt(os.chmod, random.choice(FOLDERS), random.choice([0, 0o755, 0o6777]))
            attempt(os.chmod, random.choice(FILES), random.choice([0, 0o6777]))
            attempt(append, random.choice(NAMES) + b"/.envrc")
            attempt(append, random.choice(NAMES))
        if count % 64 == 0:
            plant()


def copy(path, to):
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        text = os.read(file, 1 << 16)
    finally:
        os.close(file)
    with open(to, "wb") as file:
        file.write(text)


if mode == "once":
    plant()
    if os.fork() == 0 or os.fork() == 0:
        race(lambda count: False)
    end = time.monotonic() + random.random() * 0.01
    race(lambda count: time.monotonic() > end)
elif mode == "on":
    plant()
    print("on", flush=True)
    while not select.select([0], [], [], random.random() * 0.06)[0]:
        end = time.monotonic() + random.random() * 0.06
        race(lambda count: time.monotonic() > end)
    if os.fork() == 0:
        race(lambda count: False)
elif mode == "clean":
    plant()
    if not os.path.islink(b"f"):
        # The racer at its best: between the look and the copy.
        os.symlink(os.fsencode(outside) + b"/secret", b"swap")
        renameat2(HERE, b"f", HERE, b"swap", EXCHANGE)
        copy(b"f", b"../held/f")
