"""Pictures of the page as small files: PNG with a palette of 256 colors."""

import struct
import zlib
from collections import Counter

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLORS = 256


def small(png: bytes) -> bytes:
    """Makes a PNG of 8 bits per channel smaller. Colors that few pixels have become the nearest one of the palette."""
    width, height, channels, rows = decode(png)
    pixels = [tuple(row[at : at + 3]) for row in rows for at in range(0, width * channels, channels)]
    counts = Counter(pixels)
    palette = [color for color, _ in counts.most_common(COLORS)]
    index = {color: place for place, color in enumerate(palette)}
    for color in counts:
        if color not in index:
            index[color] = min(range(len(palette)), key=lambda place: distance(palette[place], color))
    lines = (b"\0" + bytes(index[pixel] for pixel in pixels[at : at + width]) for at in range(0, width * height, width))
    parts = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0),
        b"PLTE": b"".join(map(bytes, palette)),
        b"IDAT": zlib.compress(b"".join(lines), 9),
        b"IEND": b"",
    }
    return SIGNATURE + b"".join(struct.pack(">I", len(part)) + name + part + struct.pack(">I", zlib.crc32(name + part)) for name, part in parts.items())


def distance(one: tuple, other: tuple) -> int:
    return sum((left - right) ** 2 for left, right in zip(one, other, strict=True))


def decode(png: bytes) -> tuple[int, int, int, list[bytearray]]:
    """Width, height, channels and rows of a PNG without interlacing, as Chromium writes them."""
    at, data, header = len(SIGNATURE), b"", None
    while at < len(png):
        length, name = struct.unpack_from(">I4s", png, at)
        part = png[at + 8 : at + 8 + length]
        if name == b"IHDR":
            header = struct.unpack(">IIBBBBB", part)
        elif name == b"IDAT":
            data += part
        at += 12 + length
    width, height, depth, color, _, _, interlaced = header
    if depth != 8 or color not in (2, 6) or interlaced:
        raise ValueError(f"a PNG of another kind: {header}")
    channels = 3 if color == 2 else 4
    raw, size = zlib.decompress(data), width * channels
    rows, above = [], bytearray(size)
    for start in range(0, height * (size + 1), size + 1):
        above = unfilter(raw[start], bytearray(raw[start + 1 : start + 1 + size]), above, channels)
        rows.append(above)
    return width, height, channels, rows


def unfilter(kind: int, row: bytearray, above: bytearray, step: int) -> bytearray:
    """Undoes the filter of a row (PNG, section 9)."""
    for at in range(len(row) if kind else 0):
        left = row[at - step] if at >= step else 0
        up = above[at]
        corner = above[at - step] if at >= step else 0
        if kind == 1:
            guess = left
        elif kind == 2:
            guess = up
        elif kind == 3:
            guess = (left + up) // 2
        else:
            sum_of = left + up - corner
            guess = min((left, up, corner), key=lambda one: abs(sum_of - one))
        row[at] = (row[at] + guess) & 255
    return row
