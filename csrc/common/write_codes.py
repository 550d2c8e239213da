"""Write the C++ header of the numbers in kullback/kernels/codes.py: write_codes.py CODES HEADER."""

import runpy
import sys
from pathlib import Path

codes = runpy.run_path(sys.argv[1])
lines = [
    "// Written by write_codes.py from kullback/kernels/codes.py.",
    "#pragma once",
    "#include <cstdint>",
    "",
]
lines += ["namespace kullback {", "", f"constexpr int64_t kInterface = {codes['INTERFACE']};"]
for name in codes["__all__"]:
    if name != "INTERFACE":
        members = ", ".join(
            f"k{code.name.title().replace('_', '').replace('Kl', 'KL')} = {code.value}"
            for code in codes[name]
        )
        lines.append(f"enum class {name} : int64_t {{ {members} }};")
        lines.append(f"constexpr int64_t k{name}s = {len(codes[name])};")
Path(sys.argv[2]).write_text("\n".join([*lines, "", "}  // namespace kullback", ""]))
