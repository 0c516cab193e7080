#!/usr/bin/python3
"""Proves that the guest harness keeps its promises, each with a control. Start it as `run --self-test`."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

RUN = Path(__file__).resolve().parent / "run"
EVERY_BYTE = bytes(range(256)) * 4096


class Guest(unittest.TestCase):
    def setUp(self):
        self.work = Path(tempfile.mkdtemp(prefix="guest-self-test-"))
        (self.work / "tmp").mkdir()

    def tearDown(self):
        left = list((self.work / "tmp").iterdir())
        running = self.processes()
        shutil.rmtree(self.work)
        self.assertEqual((left, running), ([], []), "temporary files or QEMU left behind")

    def processes(self):
        """Every QEMU of this test names this test's own folder in its arguments."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes()
            except OSError:
                continue
            if b"qemu" in words and os.fsencode(self.work) in words:
                found.append(path.parent.name)
        return found

    def start(self, *arguments, **environment):
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        environment = {**os.environ, "TMPDIR": str(self.work / "tmp"), **environment}
        return subprocess.Popen([RUN, *arguments], env=environment, **pipes)

    def run_in_guest(self, *arguments, **environment):
        process = self.start(*arguments, **environment)
        stdout, stderr = process.communicate(timeout=400)
        return process.returncode, stdout, stderr.decode(errors="replace")

    def shell(self, script, *options):
        status, stdout, stderr = self.run_in_guest(*options, "--", "sh", "-c", script)
        return status, stdout.decode(), stderr


class Results(Guest):
    def test_output_errors_and_success_come_through_apart(self):
        self.assertEqual(self.shell("echo out; echo err >&2"), (0, "out\n", "err\n"))

    def test_exit_status_42_comes_through(self):
        self.assertEqual(self.shell("exit 42"), (42, "", ""))

    def test_death_by_signal_is_told_as_a_shell_tells_it(self):
        self.assertEqual(self.shell("kill -KILL $$"), (128 + 9, "", ""))

    def test_every_byte_comes_through_in_order_and_to_the_last(self):
        (self.work / "bytes").write_bytes(EVERY_BYTE)
        told = self.run_in_guest("--file", str(self.work / "bytes"), "--", "cat", "/test/bytes")
        self.assertEqual(told, (0, EVERY_BYTE, ""))

    def test_arguments_are_passed_untouched(self):
        words = ["", " two  words ", "it's", "$HOME", "a\nb", "--", "ä"]
        status, stdout, _ = self.run_in_guest("--", "printf", "<%s>", *words)
        self.assertEqual((status, stdout.decode()), (0, "".join(f"<{word}>" for word in words)))

    def test_a_file_keeps_its_mode_and_can_be_fetched_back_changed(self):
        (self.work / "in").mkdir()
        (self.work / "in/tool").write_text("#!/bin/sh\nmkdir -p /root/out/deep; cat $1 - > /root/out/deep/bytes")
        (self.work / "in/tool").chmod(0o750)
        (self.work / "in/bytes").write_bytes(EVERY_BYTE)
        into, back = ["--file", f"{self.work}/in:/opt/in"], ["--fetch", f"/root/out:{self.work}/out"]
        told = self.run_in_guest(*into, *back, "--", "/opt/in/tool", "/opt/in/bytes")
        self.assertEqual(told, (0, b"", ""))
        self.assertEqual((self.work / "out/deep/bytes").read_bytes(), EVERY_BYTE)
        status, stdout, _ = self.run_in_guest(*into, "--", "stat", "-c", "%a", "/opt/in/tool")
        self.assertEqual((status, stdout), (0, b"750\n"))

    def test_fetching_what_is_not_there_is_a_failure(self):
        status, _, stderr = self.shell("true", "--fetch", f"/root/absent:{self.work}/absent")
        self.assertEqual(status, 244)
        self.assertIn("guest: cannot fetch", stderr)


class Accidents(Guest):
    def test_a_panic_is_reported_as_one(self):
        status, stdout, stderr = self.shell("echo before; echo c > /proc/sysrq-trigger")
        self.assertEqual((status, stdout), (241, "before\n"))
        self.assertIn("guest: kernel panic in the guest", stderr)

    def test_a_hang_hits_the_time_limit(self):
        status, stdout, stderr = self.shell("echo before; sleep 1000", "--timeout", "20")
        self.assertEqual((status, stdout), (242, "before\n"))
        self.assertIn("guest: time limit: the command still ran after 20 s", stderr)

    def test_a_reader_who_does_not_read_cannot_outlast_the_time_limit(self):
        process = self.start("--timeout", "10", "--", "yes")
        self.assertEqual(process.wait(60), 242, "and the harness ends by itself")
        process.communicate()

    def test_a_guest_that_does_not_boot_in_time_is_told_from_a_command_that_hangs(self):
        status, _, stderr = self.shell("true", "--timeout", "0.5")
        self.assertEqual(status, 242)
        self.assertIn("guest: time limit: the guest had not booted after 0.5 s", stderr)

    def test_a_guest_that_cannot_boot_is_no_success(self):
        status, _, stderr = self.shell("true", "--memory", "16")
        self.assertEqual(status, 240)
        self.assertIn("guest: the guest did not boot", stderr)

    def test_power_off_by_the_command_is_no_success(self):
        status, _, stderr = self.shell("poweroff -f")
        self.assertEqual(status, 243)
        self.assertIn("before the command's exit status was known", stderr)

    def test_a_missing_prerequisite_is_a_failure_that_says_what_to_install(self):
        status, _, stderr = self.run_in_guest("--", "true", PATH="/nonexistent")
        self.assertEqual(status, 3)
        self.assertIn("apt-get install", stderr)

    def test_a_terminated_harness_takes_its_guest_along(self):
        self.end_while_running(signal.SIGTERM)

    def test_a_killed_harness_takes_its_guest_along(self):
        self.end_while_running(signal.SIGKILL)
        # Nobody is left to remove them.
        shutil.rmtree(self.work / "tmp")
        (self.work / "tmp").mkdir()

    def end_while_running(self, how):
        process = self.start("--", "sh", "-c", "echo began; sleep 1000")
        self.assertEqual(process.stdout.readline(), b"began\n", "output is streamed")
        self.assertEqual(len(self.processes()), 1, "control: the guest runs")
        process.send_signal(how)
        self.assertIn(process.wait(10), [128 + how, -how])
        process.communicate()
        deadline = time.monotonic() + 10
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.05)


class Host(Guest):
    """The guest looks like a production host."""

    def test_cgroup_v2_has_its_controllers_and_they_bite(self):
        script = """
            cat /sys/fs/cgroup/cgroup.subtree_control
            mkdir /sys/fs/cgroup/one && echo 1 > /sys/fs/cgroup/one/pids.max && ls /sys/fs/cgroup/one/memory.max
            (exec true) && echo forked
            echo $$ > /sys/fs/cgroup/one/cgroup.procs
            (exec true) && echo forked again
        """
        status, stdout, stderr = self.shell(script)
        self.assertEqual(stdout, "cpu memory pids\n/sys/fs/cgroup/one/memory.max\nforked\n")
        self.assertIn("Cannot fork", stderr)
        self.assertEqual(status, 2)

    def test_cgroup_v1_on_request(self):
        told = self.shell("cd /sys/fs/cgroup && ls -d memory/memory.limit_in_bytes pids/tasks cpu/cpu.shares cgroup.procs", "--mount-v1")
        self.assertEqual(told[:2], (1, "cpu/cpu.shares\nmemory/memory.limit_in_bytes\npids/tasks\n"))

    def test_the_user_is_an_ordinary_one(self):
        script = "id -u; id -g; whoami; pwd; touch mine && touch /usr/not-mine"
        status, stdout, stderr = self.shell(f"id -u; touch /usr/mine && as-tester sh -c '{script}'")
        self.assertEqual((status, stdout), (1, "0\n1001\n1001\ntester\n/home/tester\n"))
        self.assertIn("/usr/not-mine: Permission denied", stderr)

    def test_the_delegated_user_may_divide_its_cgroup_and_the_plain_user_may_not(self):
        script = """
            cat /proc/self/cgroup && cd /sys/fs/cgroup/delegated && mkdir x y &&
            echo $$ > x/cgroup.procs && echo "+memory +pids" > cgroup.subtree_control && echo 7 > y/pids.max && cat y/pids.max
        """
        self.assertEqual(self.shell(f"as-tester --delegated sh -c '{script}'"), (0, "0::/delegated\n7\n", ""))
        status, _, stderr = self.shell("as-tester mkdir /sys/fs/cgroup/x")
        self.assertEqual(status, 1)
        self.assertIn("Permission denied", stderr)

    def test_the_user_may_make_a_user_namespace_and_mount_in_it(self):
        mount = "mount -t tmpfs none /mnt"
        self.assertEqual(self.shell(f"as-tester unshare -Urm sh -c 'id -u; {mount}'"), (0, "0\n", ""))
        self.assertEqual(self.shell(f"as-tester {mount}")[0], 1)

    def test_the_root_can_be_pivoted_away(self):
        script = """
            mount -t tmpfs new /mnt && cp /bin/busybox /mnt && mkdir /mnt/old && cd /mnt && pivot_root . old &&
            /busybox umount -l old && /busybox ls /
        """
        self.assertEqual(self.shell(f"unshare -m sh -c '{script}'"), (0, "busybox\nold\n", ""))

    def test_usr_is_merged_as_on_debian(self):
        told = self.shell("for name in bin sbin lib lib64; do readlink /$name; done")
        self.assertEqual(told, (0, "usr/bin\nusr/sbin\nusr/lib\nusr/lib64\n", ""))

    def test_loopback_is_up_and_modules_load_on_demand(self):
        script = "ping -c 1 -W 5 127.0.0.1 >/dev/null && cd /tmp && mkdir a b c d && mount -t overlay -o lowerdir=a,upperdir=b,workdir=c none d"
        self.assertEqual(self.shell(script), (0, "", ""))

    def test_a_dynamic_program_brings_its_libraries(self):
        status, stdout, _ = self.run_in_guest("--file", "/usr/bin/dpkg", "--", "/test/dpkg", "--version")
        self.assertEqual(status, 0)
        self.assertIn(b"Debian 'dpkg'", stdout)

    def test_python_only_on_request(self):
        python = ["--", "python3", "-c", "import asyncio, ctypes, sqlite3, ssl; print(1)"]
        self.assertEqual(self.run_in_guest("--python", *python), (0, b"1\n", ""))
        self.assertEqual(self.run_in_guest(*python)[0], 127)


if __name__ == "__main__":
    unittest.main(verbosity=2, argv=sys.argv)
