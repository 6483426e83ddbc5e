#!/usr/bin/env python3
"""Writes unicode_tables.inc: what Python's str methods know about code points, as ranges.

Run with the Python whose behaviour is to be matched (3.11, Unicode 14): python3 make_unicode_tables.py > unicode_tables.inc
"""
import sys
import unicodedata

LAST = 0x110000


def chars():
    return (chr(c) for c in range(LAST) if not 0xD800 <= c <= 0xDFFF)


def ranges(test):
    """[first, last, stride] triples; stride 2 catches the alternating upper and lower letters."""
    points = [c for c in range(LAST) if test(chr(c))]
    out, i = [], 0
    while i < len(points):
        best = i
        stride = 1
        for s in (1, 2):
            j = i
            while j + 1 < len(points) and points[j + 1] == points[j] + s:
                j += 1
            if j > best:
                best, stride = j, s
        out.append((points[i], points[best], stride))
        i = best + 1
    return out


def case_ignorable(ch):
    # Word_Break MidLetter, MidNumLet and Single_Quote, beside the categories, as Unicode's SpecialCasing defines it.
    return ch in "'\u00ad.:^`\u00a8\u00af\u00b4\u00b7\u00b8\u2019\u2018\u2024\u2027\u0387\u055f\u05f4\ufe13\ufe52\ufe55\uff07\uff0e\uff1a" or \
        unicodedata.category(ch) in ("Mn", "Me", "Cf", "Lm", "Sk")


def mapping(convert):
    """(first, last, stride, delta) for single code points; (code point, text) for the rest."""
    single, special = [], []
    for ch in chars():
        to = convert(ch)
        if to == ch:
            continue
        if len(to) == 1:
            single.append((ord(ch), ord(to) - ord(ch)))
        else:
            special.append((ord(ch), to))
    out, i = [], 0
    while i < len(single):
        best, stride = i, 1
        for s in (1, 2):
            j = i
            while j + 1 < len(single) and single[j + 1] == (single[j][0] + s, single[i][1]):
                j += 1
            if j > best:
                best, stride = j, s
        out.append((single[i][0], single[best][0], stride, single[i][1]))
        i = best + 1
    return out, special


def emit(kind, name, rows):
    print(f"constexpr {kind} {name}[] = {{")
    line = "   "
    for row in rows:
        item = " {" + ", ".join(row) + "},"
        if len(line) + len(item) > 110:
            print(line)
            line = "   "
        line += item
    print(line)
    print("};")


def emit_ranges(name, test):
    emit("CodeRange", name, [(hex(a), hex(b), str(s)) for a, b, s in ranges(test)])


def emit_mapping(name, convert):
    single, special = mapping(convert)
    emit("CaseRange", name, [(hex(a), hex(b), str(s), str(d)) for a, b, s, d in single])
    emit("CaseSpecial", name + "Special",
         [(hex(c), '"' + "".join(f"\\x{b:02x}" for b in to.encode()) + '"') for c, to in special])


print(f"// Made by make_unicode_tables.py from Unicode {unicodedata.unidata_version}. Do not edit.")
print("// clang-format off")
emit_ranges("kPrintable", str.isprintable)
emit_ranges("kAlpha", str.isalpha)
emit_ranges("kDecimal", str.isdecimal)
emit_ranges("kDigit", str.isdigit)
emit_ranges("kNumeric", str.isnumeric)
emit_ranges("kLowercase", str.islower)
emit_ranges("kUppercase", str.isupper)
emit_ranges("kTitlecase", lambda c: unicodedata.category(c) == "Lt")
emit_ranges("kCaseIgnorable", case_ignorable)
emit_mapping("kLower", str.lower)
emit_mapping("kUpper", str.upper)
emit_mapping("kTitle", str.title)
print("// clang-format on")
sys.stdout.flush()
