"""Reference vectors for the chat template tests: conversations rendered by transformers.

    python make.py        writes chat.json and expressions.json beside this file

Needs transformers, jinja2 and tokenizers. The templates are `*.jinja` here and the ChatML
template of the fixtures; the expected text is `apply_chat_template`'s, the expected ids are
those of the tokenizer over that text.
"""

import json
from pathlib import Path

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import _compile_jinja_template

HERE = Path(__file__).parent
FIXTURE = HERE.parents[3] / "fixtures" / "small" / "hf"
SPECIAL = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather at a place – \"now\" & <soon>",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "city, e.g. Zürich 🏔"},
                "days": {"type": "integer", "minimum": 1, "default": 3},
                "scale": {"type": "number", "enum": [1.0, 0.5, 1e-05, 1e16, 12345678.9, -0.0]},
            },
            "required": ["place"],
            "additionalProperties": False,
            "x-empty": [[], {}, None, True, ""],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {}}}


def call(name, arguments):
    return {"type": "function", "id": "c1", "function": {"name": name, "arguments": arguments}}


CONVERSATIONS = {
    "one user turn": [{"role": "user", "content": "The river runs past the old mill. Count the boats:"}],
    "system and user": [
        {"role": "system", "content": "  Answer in one line.\n"},
        {"role": "user", "content": "Hi\n\n  there 👋🏽 — “quoted” <b>&amp;</b>"},
    ],
    "turns with reasoning in the text": [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "<think>\nsmall sum\n</think>\n\n2"},
        {"role": "user", "content": "and 2+2?"},
        {"role": "assistant", "content": "<think>\n\nlarger\nsum\n\n</think>\n4\n"},
        {"role": "user", "content": "thanks"},
    ],
    "turns with reasoning apart": [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "2", "reasoning_content": "\nsmall sum\n"},
        {"role": "user", "content": "and?"},
        {"role": "assistant", "content": "\n\n4", "reasoning_content": "last one stays"},
    ],
    "tool round": [
        {"role": "system", "content": "Use tools."},
        {"role": "user", "content": "Weather in Zürich and the time?"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "two calls",
            "tool_calls": [
                call("get_weather", {"place": "Zürich", "days": 2, "scale": 0.1, "deep": [{"a": None}]}),
                call("clock", "{\"zone\": \"CET\"}"),
            ],
        },
        {"role": "tool", "content": "{\"temp\": -3.5}", "tool_call_id": "c1"},
        {"role": "tool", "content": "12:30", "tool_call_id": "c2", "name": "clock"},
        {"role": "assistant", "content": "Cold, half past twelve."},
        {"role": "user", "content": "Then?"},
    ],
    "ends in tool answers": [
        {"role": "user", "content": "Time?"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call("clock", {})]},
        {"role": "tool", "content": "noon"},
    ],
    "tool call without text": [
        {"role": "user", "content": "Time?"},
        {"role": "assistant", "content": None, "tool_calls": [call("clock", {"a": 1})]},
        {"role": "tool", "content": "noon"},
    ],
    "parts": [
        {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]},
    ],
}
OPTIONS = [
    {"add_generation_prompt": True},
    {"add_generation_prompt": True, "enable_thinking": True},
    {"add_generation_prompt": True, "enable_thinking": False},
    {"add_generation_prompt": False},
    {"add_generation_prompt": True, "tools": [WEATHER, CLOCK]},
]

# Single expressions, in the environment of transformers. `x` is VALUE.
VALUE = {
    "text": " Hello,World, x \n",
    "list": [3, 1, 2],
    "map": {"b": 1, "a": [True, None, 0.5, "é\x7f\x01"]},
    "empty": "",
    "think": "a</think>b</think>c",
    "flag": True,
    "float": 1e16,
}
EXPRESSIONS = [
    "{{ x.map }}",
    "{{ x.list }} {{ x.flag }} {{ none }} {{ x.missing }}",
    "{{ x.map | tojson }}",
    "{{ x.map | tojson(indent=2) }}",
    "{{ x.map | tojson(sort_keys=True) }}",
    "{{ x.map | tojson(separators=(',', ':')) }}",
    "{{ x.map | tojson(ensure_ascii=True) }}",
    "{{ x.text | tojson }}{{ '\u2028' | tojson }}{{ '<a href=\"x\">&\\'' | tojson }}",
    "{{ x.list | tojson }}{{ 1.0 | tojson }}{{ 1e22 | tojson }}{{ 3 | tojson }}",
    "{{ {1: 'a', none: 'b', true: 'c'} | tojson }}",
    "{{ x.text.strip() }}|{{ x.text.lstrip() }}|{{ x.text.rstrip('\\n') }}|{{ x.text | trim }}|",
    "{{ x.text.split(',') }}{{ x.text.split() }}{{ x.text.split(',', 1) }}",
    "{{ x.think.split('</think>')[-1] }}{{ x.think.split('</think>')[0] }}{{ x.think.split('</think>', 1)[1] }}",
    "{{ x.text.startswith(' H') }}{{ x.text.endswith('x') }}{{ 'World' in x.text }}{{ 'z' not in x.text }}",
    "{{ x.text.upper() }}{{ x.text.lower() }}{{ x.text.replace('l', 'L') }}",
    "{{ x.list[::-1] }}{{ x.list[1:] }}{{ x.list[:-1] }}{{ x.text[1:4] }}{{ x.list | length }}",
    "{{ x.map.items() | list }}{{ x.map.keys() | list }}{{ x.map.get('zz', 'd') }}",
    "{% for k, v in x.map | items %}{{ k }}={{ v }};{% endfor %}{% for k in x.map %}{{ k }}{% endfor %}",
    "{{ x.list | join('-') }}{{ ', '.join(['a', 'b']) }}{{ x.list | sort | first }}{{ x.list | max }}",
    "{{ x.text is string }}{{ x.list is string }}{{ x.map is mapping }}{{ x.list is sequence }}{{ x.text is iterable }}",
    "{{ x.nope is defined }}{{ x.nope is none }}{{ x.empty is defined }}{{ nope is undefined }}{{ x.nope | default('d') }}",
    "{{ 'a' ~ 1 ~ none ~ true ~ 1.5 }}{{ 'a' * 3 }}{{ 7 // 2 }}{{ 7 % 3 }}{{ 7 / 2 }}{{ 2 ** 3 }}",
    "{{ 'yes' if x.flag else 'no' }}{{ 'x' if false }}{{ x.empty or 'or' }}{{ not x.list }}",
    "{% set ns = namespace(n=0) %}{% for i in range(5) %}{% if i == 3 %}{% break %}{% endif %}{% if i == 1 %}{% continue %}{% endif %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
    "{% for i in x.list %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.length }}{{ loop.revindex }};{% endfor %}",
    "{% for i in x.list if i > 1 %}{{ i }}{% else %}none{% endfor %}{% for i in [] %}{% else %}empty{% endfor %}",
    "{% macro m(a, b='B') %}{{ a }}-{{ b }};{% endmacro %}{{ m('x') }}{{ m('x', b='y') }}{{ m(a=1, b=2) }}",
    "  {% if true %}\n    indented\n  {% endif %}\nafter\n\n",
    "a\n  {%- if true -%}  b  {%- endif -%}\n  c\n",
    "{# comment #}\nx{#- c -#}  y\n",
    "{% generation %}kept{% endgeneration %}\n{%- generation -%} trimmed {%- endgeneration -%} z",
    "{% set a = 1 %}{% if true %}{% set a = 2 %}{% endif %}{% for i in [1] %}{% set a = 3 %}{% endfor %}{{ a }}",
    "{{ x.text | string | replace('\\n', '~') | upper }}{{ 3 | string ~ 'a' }}{{ '3' | int + 1 }}",
    "{{ x.list | map('string') | join(',') }}{{ [{'a': 1}, {'a': 2}] | selectattr('a', 'equalto', 2) | list }}",
    "{{ '%s=%d' | format('a', 3) }}{{ 'tab\\tnew\\nline' }}{{ x['map']['b'] }}{{ x.list[-1] }}",
    "{{ (1, 2) }}{{ [1, 'a', none] }}{{ {'k': 'v'} }}{{ 1 == 1.0 }}{{ 'b' > 'a' }}{{ 1 in [1] and 2 not in [1] }}",
    "{% set t %}captured {{ x.flag }}{% endset %}{{ t | trim }}{% filter upper %}up{% endfilter %}",
    "{% raw %}{{ raw }}{% endraw %}{{ '{{' }}{{ x.text | length }}{{ dict(a=1).a }}",
    "{{ ['b', 'A', 'c'] | sort }}{{ ['b', 'A', 'c'] | sort(case_sensitive=true) }}{{ x.list | sort(reverse=true) }}{{ [{'k': 2}, {'k': 1}] | sort(attribute='k') }}",
    "{{ ['a', 'A', 'b', 'a'] | unique | list }}{{ [1, 1.0, true, 2] | unique | list }}{{ x.list | sum }}{{ x.list | min }}{{ ['b', 'A'] | min }}",
    "{{ x.map | dictsort }}{{ {'b': 1, 'A': 2} | dictsort(reverse=true) }}{{ {'b': 1, 'a': 2} | dictsort(by='value') }}",
    "{{ 'a\\n\\nb' | indent }}|{{ 'a\\nb' | indent(2, true) }}|{{ 'a\\n\\nb' | indent('> ', blank=true) }}|",
    "{{ 'a b  c'.rsplit(' ', 1) }}{{ ' a  b c '.split(none, 1) }}{{ 'a b c'.rsplit(none, 1) }}{{ 'a,b,c'.rsplit(',') }}{{ ''.split() }}{{ ''.split(',') }}",
    "{{ 'a\\nb\\r\\nc'.splitlines() }}{{ 'a\\nb\\n'.splitlines(true) }}{{ 'abcabc'.find('c') }}{{ 'abcabc'.rfind('c') }}{{ 'abc'.find('z') }}{{ 'aaa'.count('a') }}",
    "{{ '{}-{}'.format(1, 'b') }}{{ '{a}{b}'.format(a=1, b=2) }}{{ '{0}{0}{{}}'.format('x') }}{{ '{:>5}|{:<4}|{:03d}|{:.2f}'.format('a', 'b', 7, 1.005) }}{{ '%05.1f|%-4s|%%|%x' | format(3.14159, 'a', 255) }}{{ '%s %s' % ('a', 1) }}",
    "{{ [1, 2, 3, 4, 5] | batch(2) | list }}{{ [1, 2, 3] | batch(2, 0) | list }}{{ 2.5 | round }}{{ 3.14159 | round(2) }}{{ 2.1 | round(method='ceil') }}{{ 42 | round }}{{ -3 | abs }}",
    "{{ '12' | int }}{{ ' 7 ' | int }}{{ 'x' | int }}{{ 'x' | int(5) }}{{ '3.9' | int }}{{ 3.9 | int }}{{ 'ff' | int(base=16) }}{{ '2.5' | float }}{{ 'x' | float }}",
    "{{ -7 // 2 }}{{ -7 % 3 }}{{ 7 % -3 }}{{ 7.5 // 2 }}{{ -7.5 % 2 }}{{ 2 ** -1 }}{{ 2 ** 0.5 }}{{ 10 / 4 }}{{ 1e3 }}{{ 1_000 }}{{ -2 ** 2 }}",
    "{{ 18446744073709551615 }}{{ 18446744073709551615 | tojson }}{{ 9223372036854775807 + 1 }}{{ [18446744073709551615] }}",
    "{{ 'hello wORLD foo-bar' | title }}|{{ 'hELLO wORLD' | capitalize }}|{{ \"they're bill's\".title() }}|{{ 'hELLO'.capitalize() }}",
    "{{ x.list | first }}{{ x.list | last }}{{ [] | first }}{{ x.text | first }}{{ x.list | reverse | list }}{{ 'abc' | reverse }}{{ x.map | list }}{{ 'ab' | list }}",
    "{{ [{'a': {'b': 1}}, {'a': {}}] | map(attribute='a.b') | list }}{{ [{'a': 1}, {}] | map(attribute='a', default=0) | list }}{{ ['a', 'b'] | map('upper') | join }}{{ ['ab'] | map('replace', 'a', 'x') | list }}",
    "{{ [1, 2, 3, 4] | select('odd') | list }}{{ [1, 2, 3] | reject('equalto', 2) | list }}{{ [0, 1, ''] | select | list }}{{ [{'a': 1}, {'a': 0}, {}] | selectattr('a') | list }}{{ [{'a': 1}, {}] | rejectattr('a', 'defined') | list }}",
    "{{ [[1, 'a'], [2, 'b']] | map(attribute=0) | list }}{{ [{'a': 1}, {'a': 2}] | map(attribute='a') | sum }}{{ [{'a': 1}, {'a': 2}] | sum(attribute='a') }}{{ [{'n': 'x'}, {'n': 'y'}] | join(', ', attribute='n') }}",
    "{{ 1 < 2 < 3 }}{{ 3 > 2 > 2 }}{{ 1 == 1 != 2 }}{{ [1, 2] < [1, 3] }}{{ (1, 2) == [1, 2] }}{{ 'a' in {'a': 1} }}{{ 1 in {true: 0} }}{{ none in [none] }}{{ 0.1 + 0.2 }}",
    "{{ x.text[::-1] }}{{ x.text[-3:] }}{{ x.list[5:] }}{{ x.list[-2:10] }}{{ x.list[::2] }}{{ x.list[2:0:-1] }}{{ 'abc'[1] }}{{ 'abc'[-1] }}{{ x.list[10] }}{{ (1, 2, 3)[1:] }}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% set p, q = 1, 2 %}{{ p }}{{ q }}{% for i in 'ab' %}{{ i }}.{{ loop.cycle('x', 'y') }}{% endfor %}",
    "{% for n in [{'v': 1, 'c': [{'v': 2, 'c': []}]}] recursive %}{{ n.v }}@{{ loop.depth }}[{{ loop(n.c) }}]{% endfor %}",
    "{% macro box(t) %}<{{ t }}:{{ caller() }}>{% endmacro %}{% call box('h') %}in{% endcall %}{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{% set a = [1] + [2, 3] %}{{ a }}{{ [0] * 3 }}{{ 'ab' * 2 }}{{ (1,) + (2,) }}{{ (1,) }}{{ () }}",
    "{% set ns = namespace(x=1, l=[]) %}{% for i in range(2, 8, 2) %}{% set ns.l = ns.l + [i] %}{% set ns.x = ns.x * 2 %}{% endfor %}{{ ns.l }}{{ ns.x }}{{ ns.y is defined }}{{ range(5, 0, -2) | list }}",
    "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}{% set t | upper %}x{% endset %}{{ t }}{% filter trim | upper %} y {% endfilter %}{{ dict([('a', 1)], b=2) }}{{ dict({'a': 1}, a=3) }}",
    "{{ 5 is odd }}{{ 4 is even }}{{ 9 is divisibleby 3 }}{{ 'a' is lower }}{{ 'A' is upper }}{{ 1 is number }}{{ true is number }}{{ true is boolean }}{{ 1 is integer }}{{ 1.0 is float }}{{ true is integer }}{{ none is none }}{{ 1 is eq 1 }}{{ 2 is gt 1 }}{{ 1 is in [1] }}{{ range is callable }}{{ x.list is iterable }}{{ 5 is iterable }}",
    "{{ \"it's\" }}{{ [\"it's\", 'say \"x\"', 'both \\' \"'] }}{{ ['\\t\\\\\\r', '\u00a0', 'é', '👋'] }}{{ [1.0, 1e100, -0.0, 1.5e-7] }}{{ {'a': {'b': (1, none)}} }}",
    "{{ '<a href=\"x\">&\\'' | e }}{{ 'a' | safe }}{{ 'xxabxx'.strip('x') }}{{ 'xxab'.lstrip('xa') }}{{ '  a' | trim }}{{ 'xax' | trim('x') }}{{ 'aXbX' | replace('X', '-', 1) }}{{ 'aXbX'.replace('X', '-', 1) }}{{ 'a b c' | wordcount }}",
    "{{ 'prefix-x'.removeprefix('prefix-') }}{{ 'x.txt'.removesuffix('.txt') }}{{ 'ab'.startswith(('x', 'a')) }}{{ 'ab'.endswith(('x',)) }}{{ '12'.isdigit() }}{{ 'a1'.isalnum() }}{{ ''.isalpha() }}{{ 'aB'.isupper() }}{{ ' '.isspace() }}{{ [1, 2, 1].count(1) }}{{ [1, 2].index(2) }}",
    "{{ x.missing | default('d') }}{{ '' | default('d') }}{{ '' | default('d', true) }}{{ none | default('d') }}{{ x.map['a'][1] }}{{ x['list'][0] }}{{ x.map.a.0 if false else x.map.a[0] }}{{ x.missing is defined and x.missing.y }}{{ not x.missing }}",
    "{{ x.map.values() | list }}{{ x.map.get('b') }}{{ x.map.get('z') }}{{ {'items': 1}.items() | list }}{{ {'items': 1}['items'] }}{{ x | length }}{{ 'a' if x.list else 'b' }}{{ (x.list | length) * 2 }}",
]


def chat_vectors():
    templates = {"fixture": json.loads((FIXTURE / "tokenizer_config.json").read_text())["chat_template"]}
    for path in sorted(HERE.glob("*.jinja")):
        templates[path.stem] = path.read_text()
    raw = Tokenizer.from_file(str(FIXTURE / "tokenizer.json"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, **SPECIAL)
    out = []
    for template, source in templates.items():
        for name, messages in CONVERSATIONS.items():
            for options in OPTIONS:
                case = {"template": template, "name": name, "messages": messages, "options": options}
                try:
                    text = tokenizer.apply_chat_template(
                        messages, chat_template=source, tokenize=False, **options
                    )
                    case["text"] = text
                    case["ids"] = raw.encode(text, add_special_tokens=False).ids
                except Exception as error:
                    case["error"] = f"{type(error).__name__}: {error}"
                out.append(case)
    return {"special_tokens": SPECIAL, "templates": templates, "cases": out}


def expression_vectors():
    cases = []
    for source in EXPRESSIONS:
        text = _compile_jinja_template(source).render(x=VALUE)
        cases.append({"source": source, "text": text})
    return {"x": VALUE, "cases": cases}


def write(name, value):
    """One line a case: small, and readable in a diff."""
    cases = value.pop("cases")
    head = json.dumps(value, ensure_ascii=False, indent=1).removesuffix("\n}")
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    (HERE / name).write_text(f'{head},\n "cases": [\n{lines}\n]}}\n')


write("chat.json", chat_vectors())
write("expressions.json", expression_vectors())
