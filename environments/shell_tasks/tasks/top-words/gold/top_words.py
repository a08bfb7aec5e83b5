import re
import sys
from collections import Counter


def main():
    if len(sys.argv) != 2 or not sys.argv[1].isdecimal() or int(sys.argv[1]) < 1:
        sys.exit(2)
    words = Counter(re.findall(r"[a-z0-9']+", sys.stdin.read().lower()))
    for word, count in sorted(words.items(), key=lambda item: (-item[1], item[0]))[: int(sys.argv[1])]:
        print(count, word)


main()
