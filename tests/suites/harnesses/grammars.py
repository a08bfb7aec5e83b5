"""Policies that write other grammars than hermes: Qwen3's tokenizer and frame of turns, with another markup
for calls.
"""

import json
import re
import shutil
from pathlib import Path

_LOOP = re.compile(r"\{%- for tool_call in message\.tool_calls %\}.*?\{%- endfor %\}", re.DOTALL)
_CODER = r"""
{%- for tool_call in message.tool_calls %}
    {{- ('\n' if content or not loop.first else '') + '<tool_call>\n<function=' + tool_call.function.name + '>\n' }}
    {%- for name, value in tool_call.function.arguments | items %}
        {{- '<parameter=' + name + '>\n' }}
        {{- value | tojson if value is mapping or (value is sequence and value is not string) else value | string }}
        {{- '\n</parameter>\n' }}
    {%- endfor %}
    {{- '</function>\n</tool_call>' }}
{%- endfor %}
"""
_MISTRAL = r"""
{%- for tool_call in message.tool_calls %}
    {{- '[TOOL_CALLS]' + tool_call.function.name + '[ARGS]' + tool_call.function.arguments | tojson }}
{%- endfor %}
"""
_PYTHONIC = r"""
{{- '<|tool_call_start|>[' }}
{%- for tool_call in message.tool_calls %}
    {{- tool_call.function.name + '(' }}
    {%- for name, value in tool_call.function.arguments | items %}
        {{- name + '=' + (value | string if value is boolean or value is none else value | tojson) }}
        {{- ', ' if not loop.last else '' }}
    {%- endfor %}
    {{- '), ' if not loop.last else ')' }}
{%- endfor %}
{{- ']<|tool_call_end|>' }}
"""
GRAMMARS = {"qwen3_coder": _CODER, "mistral": _MISTRAL, "pythonic": _PYTHONIC}
"""How a template writes the calls of a message, by grammar."""


def write_policy(grammar: str, qwen3: Path, folder: Path) -> Path:
    """Write a model folder, without weights, from that of Qwen3."""
    folder.mkdir()
    shutil.copy(qwen3 / "tokenizer.json", folder)
    config = json.loads((qwen3 / "tokenizer_config.json").read_text())
    template, replaced = _LOOP.subn(lambda _: GRAMMARS[grammar].strip(), config.pop("chat_template"))
    assert replaced == 1
    (folder / "chat_template.jinja").write_text(template)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
