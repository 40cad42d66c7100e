"""Addresses by which servers were made to fetch what they should not."""

from __future__ import annotations

_LOOPBACK = [
    "127.0.0.1", "127.1", "127.0.1", "127.255.255.254", "0.0.0.0", "0", "localhost", "LOCALHOST", "localhost.", "localhost.localdomain",
    "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "017700000001", "0x7f.1", "127.000.000.001", "127。0。0。1",
    "①②⑦.⓪.⓪.①", "[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]",
    "[64:ff9b::127.0.0.1]", "[::127.0.0.1]", "[fe80::1%25eth0]", "[::1%25lo]", "[2002:7f00:1::]", "[fec0::1]",
    "ip6-localhost", "127.0.0.1.nip.io", "localtest.me", "spoofed.burpcollaborator.net", "1.1.1.1 &@127.0.0.1# @3.3.3.3",
]  # fmt: skip
_METADATA = [
    "169.254.169.254", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "[::ffff:169.254.169.254]",
    "[fd00:ec2::254]", "metadata.google.internal", "100.100.100.200", "192.0.0.192", "169.254.170.2", "kubernetes.default.svc",
]  # fmt: skip
_PRIVATE = ["10.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"]
_TRICKS = [
    "http://ok\\@169.254.169.254/", "http://ok@127.0.0.1/", "http://ok:80@127.0.0.1/", "http://127.0.0.1\\.ok.example/",
    "http://ok.example#@127.0.0.1/", "http://ok.example?@127.0.0.1/", "http://ok.example;@127.0.0.1/", "http:127.0.0.1/",
    "http:/127.0.0.1/", "http:///127.0.0.1/", "http:\\\\127.0.0.1\\", "//127.0.0.1/x", "\\\\127.0.0.1\\share\\x", "http://127.0.0.1:80:81/",
    "http://127.0.0.1%2f@ok.example/", "http://127.0.0.1%00.ok.example/", "http://127.0.0.1\t/", "http://127.0.0.1\r\nHost: x/",
    "http://127.0.0.1/\r\nX: y", " http://127.0.0.1/", "hTTp://127.0.0.1/", "http://%31%32%37.0.0.1/", "http://ⓛocalhost/",
    "http://xn--/", "http://[::1", "http://[1.2.3.4]/", "http://127.0.0.1:65536/", "http://127.0.0.1:-1/", "http://:80/", "http://",
    "http://.", "http://a" + "a" * 300 + ".example/", "http://\u202e1.0.0.721/", "http://ok.example\u2100127.0.0.1/",
]  # fmt: skip
_SCHEMES = [
    "file:///etc/passwd", "file://localhost/etc/passwd", "file:/etc/passwd", "FILE:///etc/passwd", "file:///proc/self/environ",
    "/etc/passwd",
    "../../etc/passwd", "~/.ssh/id_rsa", "C:\\Windows\\win.ini", "ftp://127.0.0.1/x", "gopher://127.0.0.1:6379/_INFO", "dict://127.0.0.1:11211/",
    "ldap://127.0.0.1/", "tftp://127.0.0.1/x", "sftp://127.0.0.1/", "ssh://127.0.0.1", "jar:http://127.0.0.1!/", "netdoc:///etc/passwd",
    "s3://bucket/key", "gs://bucket/key", "hf://datasets/x/y", "unix:///run/docker.sock", "javascript:alert(1)", "blob:null/x",
    "about:blank",
    "data:,x", "data:text/html,<x>", "data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg'><image href='http://127.0.0.1/'/></svg>",
    "data:image/png;base64,!!!", "data:image/png;base64,iVBORw0KGgo=", "data:application/x-python-pickle;base64,gASVBQAAAAAAAACMAWGULg==",
    "phar:///x", "php://input", "expect://id", "view-source:http://127.0.0.1/", "ws://127.0.0.1/", "http+unix://%2frun%2fx.sock/",
]  # fmt: skip


def corpus(port: int) -> list[str]:
    """All of them; where a port can be named it is that of a listener that tells of visits."""
    hosts = [f"http://{host}:{port}/latest/meta-data/" for host in [*_LOOPBACK, *_METADATA, *_PRIVATE]]
    secure = [f"https://{host}:{port}/" for host in _LOOPBACK[:4]]
    tricks = [trick.replace("127.0.0.1/", f"127.0.0.1:{port}/") for trick in _TRICKS]
    return [*hosts, *secure, *tricks, *_SCHEMES, f"http://ok@127.0.0.1:{port}/a.png", f"ftp://127.0.0.1:{port}/"]
