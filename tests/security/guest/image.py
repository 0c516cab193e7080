"""What is inside the guest: a lean Debian-like system, made of the host's own files.

The kernel unpacks several archives one after another, so the system (large, cached) and what one
run adds to it (small) are two archives.
"""

import hashlib
import os
import shlex
import stat
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGES = "qemu-system-x86 linux-image-cloud-amd64 busybox-static util-linux"
# The shells and setpriv are Debian's own: busybox's differ in ways that sandbox tests notice.
PROGRAMS = ["/bin/dash", "/bin/bash", "/usr/bin/setpriv", "/usr/bin/unshare"]
# Opened at run time, so no program names them.
LIBRARIES = ["libgcc_s.so.1", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libresolv.so.2"]
LIBRARY_FOLDER = Path("/usr/lib/x86_64-linux-gnu")
# The first two carry the results out; the kernel loads the others when somebody asks for them.
MODULES = ["virtio_pci", "virtio_console", "overlay", "fuse", "veth", "tun", "dummy", "loop"]
PYTHON = Path("/usr/bin/python3")
PYTHON_LEFT_OUT = {"test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "pydoc_data"}
# Mounted over when the guest starts: a file put there would never be seen.
HIDDEN = {"dev", "proc", "sys", "run", "tmp"}
MERGED = {"bin", "sbin", "lib", "lib64"}

ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n"
    "tester:x:1001:1001:tester:/home/tester:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": "root:x:0:\ndaemon:x:1:\ntty:x:5:\ntester:x:1001:\nnogroup:x:65534:\n",
    "shadow": "root:*:19000:0:99999:7:::\ntester:*:19000:0:99999:7:::\n",
    "hosts": "127.0.0.1 localhost guest\n::1 localhost\n",
    "hostname": "guest\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "resolv.conf": "",
    "machine-id": "0123456789abcdef0123456789abcdef\n",
    "os-release": 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nNAME="Debian GNU/Linux"\nID=debian\nVERSION_ID="12"\n',
}


class Missing(Exception):
    """The host lacks something the guest needs."""


class Unusable(Exception):
    """What the caller asked for cannot be put into a guest."""


class Archive:
    """A cpio archive in the kernel's `newc` format, everything owned by root.

    Written by hand, so that no privilege and no staging folder is needed.
    """

    def __init__(self, out):
        self.out = out
        self.names = set()

    def folder(self, guest, mode=0o755):
        self._entry(guest, stat.S_IFDIR | mode, b"")

    def text(self, guest, content, mode=0o644):
        self._entry(guest, stat.S_IFREG | mode, content.encode("utf-8", "surrogateescape"))

    def link(self, guest, target):
        self._entry(guest, stat.S_IFLNK | 0o777, os.fsencode(target))

    def copy(self, guest, host):
        """Copies one file, keeping its mode and time. The time is what keeps Python's compiled files valid."""
        about = host.stat()
        self._entry(guest, stat.S_IFREG | stat.S_IMODE(about.st_mode), host.read_bytes(), int(about.st_mtime))

    def program(self, guest, host):
        """Copies one file and, if it is linked to shared libraries, those too."""
        self.copy(guest, host)
        for library in libraries_of(host):
            self.copy(library, library)

    def tree(self, guest, host, left_out=frozenset()):
        """Copies a file or a folder with all that programs in it need."""
        if host.is_symlink():
            self.link(guest, os.readlink(host))
        elif host.is_dir():
            self.folder(guest, stat.S_IMODE(host.stat().st_mode))
            for name in sorted(set(os.listdir(host)) - left_out):
                self.tree(f"{guest}/{name}", host / name, left_out)
        elif host.is_file():
            self.program(guest, host)
        else:
            raise Unusable(f"`{host}` is neither a file nor a folder")

    def close(self):
        self._write("TRAILER!!!", 0, b"", 0)

    def _entry(self, guest, mode, content, time=0):
        name = merged(guest)
        if name in self.names:
            return
        self.names.add(name)
        if "/" in name:
            self.folder(name.rpartition("/")[0])
        self._write(name, mode, content, time)

    def _write(self, name, mode, content, time):
        name = os.fsencode(name) + b"\0"
        fields = [0, mode, 0, 0, 1, time, len(content), 0, 0, 0, 0, len(name), 0]
        head = b"070701" + b"".join(b"%08x" % field for field in fields) + name
        self.out.write(padded(head) + padded(content))


def padded(part):
    return part + b"\0" * (-len(part) % 4)


def merged(guest):
    """The path as it is stored: relative, and below /usr where Debian merged the two."""
    name = os.path.normpath("/" + str(guest)).lstrip("/")
    top, slash, _ = name.partition("/")
    return f"usr/{name}" if slash and top in MERGED else name


def libraries_of(host):
    with open(host, "rb") as file:
        if file.read(4) != b"\x7fELF":
            return []
    told = subprocess.run(["ldd", str(host)], capture_output=True, text=True, check=False).stdout
    lines = [line.split() for line in told.splitlines()]
    absent = [words[0] for words in lines if words[1:] == ["=>", "not", "found"]]
    if absent:
        raise Unusable(f"`{host}` needs libraries this host does not have: {' '.join(absent)}")
    return [Path(word) for words in lines for word in words[:3] if word.startswith("/")]


def find_kernel():
    """The newest of Debian's cloud kernels, as (image, folder of its modules)."""
    versions = [path.name.removeprefix("vmlinuz-") for path in Path("/boot").glob("vmlinuz-*-cloud-amd64")]
    if not versions:
        raise Missing("no kernel /boot/vmlinuz-*-cloud-amd64")
    newest = max(versions, key=lambda version: [int(part) for part in version.replace("-", ".").split(".") if part.isdigit()])
    modules = Path("/usr/lib/modules") / newest
    if not (modules / "modules.dep").exists():
        raise Missing(f"no kernel modules in {modules}")
    return Path("/boot/vmlinuz-" + newest), modules


def add_modules(archive, modules):
    """Copies our modules and what they depend on, with indexes cut down to them, for a quick modprobe."""
    depends = dict(line.split(":", 1) for line in (modules / "modules.dep").read_text().splitlines())
    by_name = {Path(path).name.split(".")[0].replace("-", "_"): path for path in depends}
    wanted = [by_name[name] for name in MODULES]
    closure = list(dict.fromkeys(path for own in wanted for path in [own, *depends[own].split()]))
    names = {Path(path).name.split(".")[0].replace("-", "_") for path in closure}
    aliases = (modules / "modules.alias").read_text().splitlines(keepends=True)
    for path in closure:
        archive.copy(modules / path, modules / path)
    archive.text(modules / "modules.dep", "".join(f"{path}:{depends[path]}\n" for path in closure))
    archive.text(modules / "modules.alias", "".join(line for line in aliases if line.split()[-1] in names))


def add_busybox(archive, busybox):
    """Every applet by its name, except where the program itself is already there."""
    archive.program("usr/bin/busybox", busybox)
    listed = subprocess.run([busybox, "--list-full"], capture_output=True, text=True, check=True).stdout
    for applet in map(Path, listed.split()):
        if applet.parts[0] != "linuxrc":
            folder = "sbin" if "sbin" in applet.parts else "bin"
            archive.link(f"usr/{folder}/{applet.name}", "/usr/bin/busybox")


def add_python(archive):
    program = PYTHON.resolve()
    archive.program(program, program)
    archive.link(PYTHON, program.name)
    library = Path("/usr/lib") / program.name
    configuration = {path.name for path in library.glob("config-*")}
    archive.tree(library, library, PYTHON_LEFT_OUT | configuration)
    archive.tree(f"/etc/{program.name}", Path("/etc") / program.name)


def write_system(out, busybox, modules, python):
    archive = Archive(out)
    for name in sorted(MERGED):
        archive.folder(f"usr/{name}")
        archive.link(name, f"usr/{name}")
    archive.folder("root", 0o700)
    archive.folder("tmp", 0o1777)
    archive.folder("var/tmp", 0o1777)
    for name in ["home/tester", "run", "mnt", "opt", "srv", "test", "usr/local/bin"]:
        archive.folder(name)
    archive.link("var/run", "/run")
    for name, content in ETC.items():
        archive.text(f"etc/{name}", content, 0o600 if name == "shadow" else 0o644)
    for path in map(Path, PROGRAMS):
        archive.program(path, path)
    for name in LIBRARIES:
        archive.program(LIBRARY_FOLDER / name, LIBRARY_FOLDER / name)
    archive.link("usr/bin/sh", "dash")
    archive.copy("init", HERE / "inside/init")
    archive.copy("usr/lib/guest/start", HERE / "inside/start")
    archive.copy("usr/bin/as-tester", HERE / "inside/as-tester")
    if python:
        add_python(archive)
    add_modules(archive, modules)
    add_busybox(archive, busybox)
    archive.close()


def system(cache, busybox, kernel, modules, python):
    """The path of the cached system archive, made now if its inputs changed."""
    inputs = [busybox, kernel, modules / "modules.dep", Path("/var/lib/dpkg/status"), *map(Path, PROGRAMS)]
    inputs += [Path(__file__), *sorted((HERE / "inside").iterdir()), *([PYTHON.resolve()] if python else [])]
    absent = [str(path) for path in inputs if not path.exists()]
    if absent:
        raise Missing(f"no {', '.join(absent)}")
    facts = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in inputs]
    key = hashlib.sha256(repr((facts, python)).encode()).hexdigest()[:16]
    path = cache / f"system-{key}.cpio"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as work:
            unfinished = Path(work) / path.name
            with open(unfinished, "wb") as out:
                write_system(out, busybox, modules, python)
            # In one step, because another run may be looking for it.
            os.replace(unfinished, path)
    return path


def script(before, command):
    return f"#!/bin/sh\n{before}\nexec {shlex.join(command)}\n"


def write_run(out, files, command, fetched, cgroup):
    """What one run adds: its files, its command, what to bring back."""
    archive = Archive(out)
    if len({merged(guest) for _, guest in files}) < len(files):
        raise Unusable("two files for one place in the guest")
    for host, guest in files:
        top = merged(guest).split("/")[0]
        if top in HIDDEN:
            raise Unusable(f"`{guest}`: the guest mounts an empty /{top} over it")
        archive.tree(guest, host.resolve())
    tar = ["tar", "-c", "-f", "-", "-C", "/", "--", *map(merged, fetched)] if fetched else ["true"]
    archive.text("usr/lib/guest/command", script("exec </dev/null >/dev/vport0p1 2>/dev/vport0p2", command), 0o755)
    archive.text("usr/lib/guest/fetch", script(":", tar), 0o755)
    archive.text("usr/lib/guest/settings", f"cgroup={cgroup}\n")
    archive.close()
