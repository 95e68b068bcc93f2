#!/usr/bin/env python3
# Gives a picture of one colour: `{"args": ["46", "105", "176"]}` (red, green, blue).
#
# Nothing but a PNG on standard output; that it is an image is seen from its first bytes.
import struct
import sys
import zlib

red, green, blue = (int(text) for text in sys.argv[1:4])


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


rows = (b"\0" + bytes((red, green, blue)) * 64) * 64
sys.stdout.buffer.write(
    b"\x89PNG\r\n\x1a\n"
    + chunk(b"IHDR", struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0))
    + chunk(b"IDAT", zlib.compress(rows))
    + chunk(b"IEND", b"")
)
