"""Turns this process into a program that can compute and print, and nothing else. Run by `python.py`, never imported.

It starts as the first process in namespaces of its own, and stays that: with it everything in them ends. Its child
builds a root directory that holds an interpreter and an empty folder, gives up every privilege, refuses itself the
system calls that reach beyond the process, and becomes the program. Where any step fails, the program does not run.
Only the standard library is in reach.

    python -I sandbox.py ROOT MEMORY_MB DISK_MB CPU_S  < program
"""

import ctypes
import os
import platform
import resource
import struct
import sys

# <sys/mount.h>, <linux/mount.h>
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC = 2, 4, 4096, 16384
ATTR_READ_ONLY, ATTR_NOSUID, ATTR_NODEV = 1, 2, 4
AT_FDCWD, AT_RECURSIVE, SYS_MOUNT_SETATTR = -100, 0x8000, 442
# <linux/prctl.h>, <linux/seccomp.h>, <linux/filter.h>
PR_SET_SECCOMP, PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 22, 23, 24, 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
ALLOW, REFUSE, ABSENT, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000  # EPERM is 1, ENOSYS is 38
LOAD, EQUAL, AT_LEAST, HAS_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
CLONE_THREAD = 0x10000

# Machine -> its number for filters, its `clone`, and the column of its numbers in REFUSED.
MACHINES = {"x86_64": (0xC000003E, 56, 0), "aarch64": (0xC00000B7, 220, 1)}
# What reaches beyond the process or holds memory that no limit counts. A thread is a clone that shares its process; any
# other clone is refused too.
REFUSED = {
    "socket": (41, 198),
    "io_uring_setup": (425, 425),
    "fork": (57, None),
    "vfork": (58, None),
    "unshare": (272, 97),
    "setns": (308, 268),
    "ptrace": (101, 117),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "syslog": (103, 116),
}
SYS_CLONE3 = 435

libc = ctypes.CDLL(None, use_errno=True)


def main(root: str, memory_mb: int, disk_mb: int, cpu_s: int) -> None:
    if child := os.fork():
        # The tie to our parent is lost when a thread executes something; so it must not be the program's own.
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os._exit(ended if ended >= 0 else 128 - ended)  # as shells tell of signals
    program = sys.stdin.buffer.read()
    os.setsid()  # a process group reaches through namespaces, and a signal to it would reach us
    build_root(root, disk_mb)
    os.chroot(root)
    os.chdir("/tmp")
    with open("main.py", "wb") as file:
        file.write(program)
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
    resource.setrlimit(resource.RLIMIT_FSIZE, (disk_mb << 20, disk_mb << 20))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    drop_privileges()
    refuse_system_calls()
    os.write(1, b"\0")  # tells that all went well, and that the program begins
    os.execv(sys.executable, [sys.executable, "-I", "main.py"])


def build_root(root: str, disk_mb: int) -> None:
    """A file system in memory: the system's libraries and the interpreter, read-only and without devices, and /tmp."""
    size = f"size={disk_mb}m,nr_inodes={disk_mb}k"  # an empty file takes a kilobyte, which the size does not count
    check(libc.mount(b"tmpfs", root.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, size.encode()), "mount")
    shown: list[str] = []
    system = ("/usr", "/lib", "/lib64", "/bin")
    # An interpreter may be known by a link, and link to its own files by where they are.
    prefixes = (sys.base_prefix, sys.prefix, os.path.realpath(sys.base_prefix), os.path.realpath(sys.prefix))
    for path in (*system, *prefixes):
        if not os.path.lexists(path) or any(path == one or path.startswith(one + "/") for one in shown):
            continue
        shown.append(path)
        place = root + path
        if path in system and os.path.islink(path):
            os.symlink(os.readlink(path), place)
            continue
        os.makedirs(place, exist_ok=True)
        check(libc.mount(path.encode(), place.encode(), None, MS_BIND | MS_REC, None), f"mount {path}")
        attributes = struct.pack("=4Q", ATTR_READ_ONLY | ATTR_NOSUID | ATTR_NODEV, 0, 0, 0)
        done = libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, place.encode(), AT_RECURSIVE, attributes, len(attributes))
        check(done, f"make {path} read-only")
    os.makedirs(root + "/tmp", exist_ok=True)


def drop_privileges() -> None:
    """No capability can be had again, not even by executing a file that grants some."""
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "give up new privileges")
    check(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "give up ambient capabilities")
    capability = 0
    while libc.prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0:  # one that Linux does not know ends the list
        check(libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0), "give up capabilities")
        capability += 1  # with none of them in the bounding set, `execv` leaves none


def refuse_system_calls() -> None:
    """No sockets (namespaces alone leave VSOCK open) but pairs, which asyncio needs; no further processes; no memory
    beside the limit."""
    machine, clone, column = MACHINES[platform.machine()]
    filters = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, machine), (RETURN, 0, 0, KILL), (LOAD, 0, 0, 0)]
    filters += [(AT_LEAST, 0, 1, 0x40000000), (RETURN, 0, 0, REFUSE)]  # the x32 numbers of x86_64
    for number in filter(None, (numbers[column] for numbers in REFUSED.values())):
        filters += [(EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE)]
    filters += [(EQUAL, 0, 1, SYS_CLONE3), (RETURN, 0, 0, ABSENT)]  # its flags cannot be read; libc then uses clone
    filters += [(EQUAL, 0, 3, clone), (LOAD, 0, 0, 16), (HAS_BIT, 1, 0, CLONE_THREAD), (RETURN, 0, 0, REFUSE)]
    filters += [(RETURN, 0, 0, ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in filters))
    program = struct.pack("@HP", len(filters), ctypes.addressof(code))
    check(libc.prctl(PR_SET_SECCOMP, 2, program, 0, 0), "refuse system calls")


def check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"cannot {what}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
