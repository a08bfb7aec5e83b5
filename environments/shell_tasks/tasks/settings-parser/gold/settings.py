import json
import re
import sys


def parse(text):
    text = re.sub(r"[ \t]*\\\n[ \t]*", " ", text.replace("\r\n", "\n"))
    found, section = {}, ""
    for line in map(str.strip, text.split("\n")):
        if not line or line[0] in "#;":
            continue
        if line[0] == "[":
            section = line[1:-1].strip()
            if line[-1] != "]" or not section:
                raise ValueError(f"wrong section head: {line}")
            continue
        key, sign, value = (part.strip() for part in line.partition("="))
        if not sign or not key or key in found.get(section, {}):
            raise ValueError(f"wrong line: {line}")
        if len(value) > 1 and value[0] == value[-1] == '"':
            value = value[1:-1]
        found.setdefault(section, {})[key] = value
    return found


if __name__ == "__main__":
    try:
        print(json.dumps(parse(sys.stdin.read()), sort_keys=True))
    except ValueError as error:
        sys.exit(str(error))
