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
        members = {code.name.title().replace("_", "").replace("Kl", "KL"): code.value for code in codes[name]}
        values = ", ".join(f"k{member} = {value}" for member, value in members.items())
        lines.append(f"enum class {name} : int64_t {{ {values} }};")
        lines.append(f"constexpr int64_t k{name}s = {len(members)};")
        # A list of all members, for a macro that takes one of them.
        lines.append(f"#define KULLBACK_{name.upper()}S(X) {' '.join(f'X({member})' for member in members)}")
Path(sys.argv[2]).write_text("\n".join([*lines, "", "}  // namespace kullback", ""]))
