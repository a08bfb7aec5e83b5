"""A Python text with the positions of its syntax tree: computes the edit that changes one node.

`ast` counts columns in UTF-8 bytes, and so does everything here. A change that is no simple edit gives
None: an operator that cannot be found between its operands, a statement that shares its line.
"""

import ast
import re
import warnings

from environments.swe.edit import SourceEdit

Node = ast.AST


class Source:
    """One file."""

    def __init__(self, path: str, text: str) -> None:
        self._path = path
        self._data = text.encode()
        self._lines = [0]
        for line in self._data.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def span(self, node: Node) -> tuple[int, int]:
        """Start and end of a node, as byte offsets."""
        at: ast.expr = node  # type: ignore[assignment]
        assert at.end_lineno is not None
        assert at.end_col_offset is not None
        return self._lines[at.lineno - 1] + at.col_offset, self._lines[at.end_lineno - 1] + at.end_col_offset

    def text(self, node: Node) -> str:
        """The source text of a node."""
        start, end = self.span(node)
        return self._data[start:end].decode()

    def parses_with(self, edit: SourceEdit) -> bool:
        """Whether the edited text is valid Python and has another syntax tree."""
        data = self._data[: edit.start] + edit.new.encode() + self._data[edit.end :]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                text = data.decode()
                compile(text, self._path, "exec", dont_inherit=True)
                return ast.dump(ast.parse(text)) != ast.dump(ast.parse(self._data))
        except (SyntaxError, ValueError):
            return False

    def replaced(self, node: Node, new: str) -> SourceEdit | None:
        """Replaces the text of a node."""
        return self._edit(*self.span(node), new)

    def between(self, left: Node, right: Node, old: str, new: str) -> SourceEdit | None:
        """Replaces the operator between two nodes."""
        # The tree has no position for operators. A comment between the operands could contain the operator
        # too.
        start, end = self.span(left)[1], self.span(right)[0]
        gap = self._data[start:end].decode()
        words = r"\s+".join(map(re.escape, old.split()))
        pattern = rf"(?<!\w){words}(?!\w)" if old[0].isalpha() else words
        matches = list(re.finditer(pattern, gap))
        if len(matches) != 1 or "#" in gap:
            return None
        at = start + len(gap[: matches[0].start()].encode())
        return self._edit(at, at + len(matches[0][0].encode()), new)

    def swapped(self, first: Node, second: Node) -> SourceEdit | None:
        """Swaps two nodes."""
        (start, middle), (rest, end) = self.span(first), self.span(second)
        a, b = self._data[start:middle], self._data[rest:end]
        return (
            None
            if a == b or middle > rest
            else self._edit(start, end, (b + self._data[middle:rest] + a).decode())
        )

    def without_second(self, first: Node, second: Node) -> SourceEdit | None:
        """Removes the second of two operands and the operator before it."""
        return self._edit(self.span(first)[1], self.span(second)[1], "")

    def without_first(self, first: Node, second: Node) -> SourceEdit | None:
        """Removes the first of two operands and the operator after it."""
        return self._edit(self.span(first)[0], self.span(second)[0], "")

    def without_argument(self, call: ast.Call, argument: ast.keyword) -> SourceEdit | None:
        """Removes a keyword argument of a call and its comma."""
        start, end = self.span(argument)
        before = re.search(rb",\s*$", self._data[self.span(call.func)[1] : start])
        if before is not None:
            return self._edit(start - len(before[0]), end, "")
        after = re.match(rb"\s*,\s*", self._data[end:])
        return self._edit(start, end + (len(after[0]) if after else 0), "")

    def without_statement(self, statement: ast.stmt) -> SourceEdit | None:
        """Removes the lines of a statement; None if it shares them with another."""
        start, end = self.span(statement)
        assert statement.end_lineno is not None
        line = self._lines[statement.lineno - 1]
        next_line = self._lines[statement.end_lineno]
        if self._data[line:start].strip() or self._data[end:next_line].strip():
            return None
        return self._edit(line, next_line, "")

    def renamed(self, function: Node, old: str, new: str) -> SourceEdit | None:
        """Replaces the name of a called function or method."""
        end = self.span(function)[1]
        return self._edit(end - len(old.encode()), end, new)

    def _edit(self, start: int, end: int, new: str) -> SourceEdit | None:
        old = self._data[start:end].decode()
        return None if old == new else SourceEdit(self._path, start, old, new)
