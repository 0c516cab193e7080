"""Changes whatever is in its folder in every way there is, through no link, and plants what is held back: then it ends."""

import os
import random


def attempt(act, *words):
    try:
        act(*words)
    except OSError:
        pass


def write(name):
    # Nobody reads the pipes that the racer plants.
    file = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK)
    os.write(file, b"of the program\n")
    os.close(file)


def replace_by_folder(name):
    os.remove(name)
    os.mkdir(name)
    write(name + b"/below")


def replace_by_link(name):
    os.remove(name)
    os.symlink(b"keep", name)


def replace_by_file(name):
    os.rename(name, b"moved-" + os.path.basename(name))
    write(name)


DEEDS = [write, os.remove, replace_by_folder, replace_by_link, lambda name: os.chmod(name, 0o700)]

DEPTH = 4
for folder, folders, files in list(os.walk(b".")):
    if folder.count(b"/") >= DEPTH:
        folders.clear()
    for name in files:
        attempt(random.choice(DEEDS), folder + b"/" + name)
for name in [b"d", b"d/e", b"d/e/f", b"g", b"keep"]:
    if random.random() < 0.2:
        attempt(replace_by_file, name)
    attempt(os.makedirs, name)
    attempt(write, name + b"/n0")
    attempt(write, name + b"/fresh")
    attempt(os.mkdir, name + b"/made")
    attempt(write, name + b"/made/in")
for name in [b"f", b"last", b"up", b"far", b"suid"]:
    attempt(write, name)
attempt(os.symlink, b"../../outside", b"out")
attempt(write, b".envrc")
