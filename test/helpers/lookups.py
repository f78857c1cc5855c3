"""What the processes of a command look up, and whom they reach, as the C library sees it.

Libraries in C and Rust ask past Python, so this is a library that Linux loads into each process. It
notes, and refuses, names that are looked up and addresses of other machines that are connected to.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import edge_cloud_spec

SOURCE = r"""
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void note(const char *what, const char *whom) {
    const char *path = getenv("LOOKUPS");
    int file = path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644) : -1;
    if (file < 0) return;
    dprintf(file, "%s %s\n", what, whom);
    close(file);
}

static int is_here(const char *name) {
    char number[sizeof(struct in6_addr)];
    return !name || !*name || !strcmp(name, "localhost") ||
           inet_pton(AF_INET, name, number) == 1 || inet_pton(AF_INET6, name, number) == 1;
}

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                struct addrinfo **found) {
    static int (*next)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    if (!is_here(name)) { note("name", name); return EAI_NONAME; }
    if (!next) next = dlsym(RTLD_NEXT, "getaddrinfo");
    return next(name, service, hints, found);
}

struct hostent *gethostbyname(const char *name) { note("name", name); return NULL; }
struct hostent *gethostbyname2(const char *name, int kind) { note("name", name); return NULL; }
int gethostbyname_r(const char *name, struct hostent *host, char *room, size_t size,
                    struct hostent **found, int *error) {
    note("name", name); *found = NULL; *error = HOST_NOT_FOUND; return 0;
}
int gethostbyname2_r(const char *name, int kind, struct hostent *host, char *room, size_t size,
                     struct hostent **found, int *error) {
    note("name", name); *found = NULL; *error = HOST_NOT_FOUND; return 0;
}
/* The names of loopback's own addresses are in /etc/hosts. */
static int is_loopback(const void *address, int kind) {
    const unsigned char *bytes = address;
    return kind == AF_INET ? bytes[0] == 127 : !memcmp(bytes, &in6addr_loopback, 16);
}
struct hostent *gethostbyaddr(const void *address, socklen_t size, int kind) {
    if (!is_loopback(address, kind)) note("name of", "an address");
    return NULL;
}
int gethostbyaddr_r(const void *address, socklen_t size, int kind, struct hostent *host, char *room,
                    size_t much, struct hostent **found, int *error) {
    if (!is_loopback(address, kind)) note("name of", "an address");
    *found = NULL; *error = HOST_NOT_FOUND; return 0;
}

/* Whether this is another machine's address, or a name server's; it is noted then. */
static int is_refused(const struct sockaddr *to, int names_only) {
    char host[INET6_ADDRSTRLEN] = "", said[INET6_ADDRSTRLEN + 8];
    int port = 0;
    if (!to) return 0;
    if (to->sa_family == AF_INET) {
        const struct sockaddr_in *four = (const struct sockaddr_in *)to;
        inet_ntop(AF_INET, &four->sin_addr, host, sizeof host);
        port = ntohs(four->sin_port);
    } else if (to->sa_family == AF_INET6) {
        const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)to;
        inet_ntop(AF_INET6, &six->sin6_addr, host, sizeof host);
        port = ntohs(six->sin6_port);
    }
    const char *four = strncmp(host, "::ffff:", 7) ? host : host + 7;
    int local = !strncmp(four, "127.", 4) || !strcmp(host, "::1") || !strcmp(four, "0.0.0.0");
    if (!port || ((local || names_only) && port != 53)) return 0;
    snprintf(said, sizeof said, "%s:%d", host, port);
    note("address", said);
    errno = ENETUNREACH;
    return 1;
}

int connect(int fd, const struct sockaddr *to, socklen_t size) {
    static int (*next)(int, const struct sockaddr *, socklen_t);
    if (is_refused(to, 0)) return -1;
    if (!next) next = dlsym(RTLD_NEXT, "connect");
    return next(fd, to, size);
}

/* DDS sends datagrams to every network: its discovery. Of these, only look-ups are noted. */
ssize_t sendto(int fd, const void *data, size_t length, int flags, const struct sockaddr *to,
               socklen_t size) {
    static ssize_t (*next)(int, const void *, size_t, int, const struct sockaddr *, socklen_t);
    if (is_refused(to, 1)) return -1;
    if (!next) next = dlsym(RTLD_NEXT, "sendto");
    return next(fd, data, length, flags, to, size);
}
ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    static ssize_t (*next)(int, const struct msghdr *, int);
    if (is_refused(message->msg_name, 1)) return -1;
    if (!next) next = dlsym(RTLD_NEXT, "sendmsg");
    return next(fd, message, flags);
}
"""


KNOWN = re.compile(r"\.ros/log/.*")  # what docs/privacy.md says is written below the home


@cache
def library() -> Path | None:
    """The library, built; None where there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    folder = Path(_FOLDER.name)
    source, built = folder / "lookups.c", folder / "lookups.so"
    source.write_text(SOURCE)
    command = [compiler, "-shared", "-fPIC", "-w", "-o", str(built), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return built


_FOLDER = TemporaryDirectory(prefix="lookups_")


class Watched:
    """Runs commands with a home of their own."""

    def __init__(self, folder: Path) -> None:
        """Skips the test where there is no compiler."""
        built = library()
        if built is None:
            pytest.skip("there is no C compiler, and without it look-ups are not seen")
        self.home, self._log = folder / "home", folder / "lookups.txt"
        self.home.mkdir()
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("XDG_") and name not in edge_cloud_spec.QUIET
        }
        self.environment["HOME"] = str(self.home)
        self.environment |= {"LD_PRELOAD": str(built), "LOOKUPS": str(self._log)}

    def run(self, argv: Sequence[str], timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
        """The command's end, and what it printed."""
        return subprocess.run(
            argv, env=self.environment, capture_output=True, text=True, timeout=timeout, check=False
        )

    @property
    def asked(self) -> list[str]:
        """Names that were looked up, and addresses of other machines, in order."""
        return self._log.read_text().splitlines() if self._log.exists() else []

    @property
    def written(self) -> set[str]:
        """The files below the home."""
        found = (path for path in self.home.rglob("*") if path.is_file())
        return {str(path.relative_to(self.home)) for path in found}


def assert_nothing(watched: Watched) -> None:
    """Nobody was asked, and nothing was written but what the page names."""
    assert watched.asked == []
    assert [name for name in watched.written if not KNOWN.fullmatch(name)] == []
