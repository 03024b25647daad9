#!/usr/bin/env python3
"""Drives `shamrock serve` with the official OpenAI and Anthropic clients.

    python3 -m venv clients && clients/bin/pip install openai anthropic
    clients/bin/python tools/api-clients.py target/release/shamrock

Starts a server over clover-nano on a free port, checks every API both whole and streamed, and stops it.
"""

import re
import subprocess
import sys

import anthropic
import openai

MODEL = "clover-nano"
SUM = [{"role": "user", "content": "What is 47 * 36?"}]
STORY = [{"role": "user", "content": "Write a short story with the words fox, lantern and river."}]


def start(program):
    server = subprocess.Popen([program, "serve", "--port", "0"], stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        if found := re.search(r"on (http://\S+?),", line):
            return server, found[1]
    sys.exit("the server did not start")


def check(name, holds, what=None):
    print(f"{'ok' if holds else 'FAILED'}  {name}" + ("" if holds else f": {what!r}"))
    if not holds:
        sys.exit(1)


def chat(client):
    whole = client.chat.completions.create(model=MODEL, messages=SUM)
    text = whole.choices[0].message.content
    check("chat", "1692" in text and whole.choices[0].finish_reason == "stop", whole)
    usage = whole.usage.model_extra["shamrock"]
    check("chat: tokens per pass", usage["tokens_per_pass"] > 1, usage)
    stream = client.chat.completions.create(
        model=MODEL, messages=SUM, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    check("chat: stream", streamed == text, streamed)
    check("chat: usage of a stream", chunks[-1].usage.completion_tokens == whole.usage.completion_tokens, chunks[-1])
    check("chat: cached tokens", chunks[-1].usage.prompt_tokens_details.cached_tokens > 0, chunks[-1])
    many = client.chat.completions.create(
        model=MODEL, messages=STORY, n=3, temperature=2, seed=7, max_tokens=30, logprobs=True,
        extra_body={"shamrock": {"mode": "causal"}},
    )
    texts = [choice.message.content for choice in many.choices]
    check("chat: n", len(set(texts)) > 1, texts)
    tokens = many.choices[0].logprobs.content
    check("chat: logprobs", "".join(t.token for t in tokens) == texts[0], tokens)
    stopped = client.chat.completions.create(model=MODEL, messages=SUM, stop=["1692"])
    check("chat: stop", stopped.choices[0].message.content == text.split("1692")[0], stopped)
    thought = client.chat.completions.create(model=MODEL, messages=SUM, reasoning_effort="high")
    message = thought.choices[0].message
    check("chat: reasoning", message.model_extra["reasoning_content"] and "think" not in message.content, message)
    check("chat: reasoning tokens", thought.usage.completion_tokens_details.reasoning_tokens > 0, thought.usage)
    try:
        client.chat.completions.create(model=MODEL, messages=SUM, response_format={"type": "json_object"})
        check("chat: refusal", False)
    except openai.BadRequestError as error:
        check("chat: refusal", error.param == "response_format", error)
    try:
        client.chat.completions.create(model="other", messages=SUM)
        check("chat: other model", False)
    except openai.NotFoundError as error:
        check("chat: other model", error.code == "model_not_found", error)


def completions(client):
    prompt = "<|im_start|>user\nWhat is 3 + 4?<|im_end|>\n<|im_start|>assistant\n"
    whole = client.completions.create(model=MODEL, prompt=prompt, max_tokens=32)
    check("completion", "7" in whole.choices[0].text, whole)
    chunks = client.completions.create(model=MODEL, prompt=prompt, max_tokens=32, stream=True)
    streamed = "".join(chunk.choices[0].text for chunk in chunks)
    check("completion: stream", streamed == whole.choices[0].text, streamed)


def responses(client):
    whole = client.responses.create(model=MODEL, input=SUM[0]["content"], instructions="Be brief.", store=False)
    check("response", "1692" in whole.output_text and whole.status == "completed", whole)
    with client.responses.stream(model=MODEL, input=SUM[0]["content"], instructions="Be brief.") as stream:
        final = None
        deltas = ""
        for event in stream:
            if event.type == "response.output_text.delta":
                deltas += event.delta
        final = stream.get_final_response()
    check("response: stream", deltas == final.output_text == whole.output_text, final)
    thought = client.responses.create(model=MODEL, input=SUM, reasoning={"effort": "high"})
    kinds = [item.type for item in thought.output]
    check("response: reasoning", kinds == ["reasoning", "message"], kinds)
    follow = [*SUM, *[item.model_dump(exclude_none=True) for item in thought.output], *STORY]
    check("response: follow-up", client.responses.create(model=MODEL, input=follow).output_text != "")
    cut = client.responses.create(model=MODEL, input=STORY, max_output_tokens=5)
    check("response: cut", cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens", cut)


def messages(client):
    whole = client.messages.create(model=MODEL, max_tokens=200, messages=SUM)
    check("message", "1692" in whole.content[0].text and whole.stop_reason == "end_turn", whole)
    with client.messages.stream(model=MODEL, max_tokens=200, messages=SUM) as stream:
        streamed = "".join(stream.text_stream)
        final = stream.get_final_message()
    check("message: stream", streamed == whole.content[0].text and final.stop_reason == "end_turn", final)
    thought = client.messages.create(
        model=MODEL, max_tokens=2000, messages=SUM, thinking={"type": "enabled", "budget_tokens": 1024}
    )
    kinds = [block.type for block in thought.content]
    check("message: thinking", kinds == ["thinking", "text"], kinds)
    with client.messages.stream(
        model=MODEL, max_tokens=2000, messages=SUM, thinking={"type": "enabled", "budget_tokens": 1024}
    ) as stream:
        final = stream.get_final_message()
    check("message: thinking streamed", [b.type for b in final.content] == kinds, final)
    stopped = client.messages.create(model=MODEL, max_tokens=200, messages=SUM, stop_sequences=["1692"])
    check("message: stop", (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "1692"), stopped)
    follow = [*SUM, {"role": "assistant", "content": thought.content}, *STORY]
    system = [{"type": "text", "text": "Be brief."}]
    again = client.messages.create(model=MODEL, max_tokens=10, system=system, messages=follow)
    check("message: follow-up", again.stop_reason == "max_tokens", again)
    count = client.messages.count_tokens(model=MODEL, messages=SUM)
    usage = whole.usage
    check("message: count", count.input_tokens == usage.input_tokens + usage.cache_read_input_tokens, (count, usage))
    try:
        client.messages.create(model=MODEL, max_tokens=1, messages=SUM, tools=[{"name": "f", "input_schema": {}}])
        check("message: refusal", False)
    except anthropic.BadRequestError as error:
        check("message: refusal", "tools" in str(error), error)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    server, url = start(sys.argv[1])
    try:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        check("models", [model.id for model in client.models.list()] == [MODEL])
        chat(client)
        completions(client)
        responses(client)
        messages(anthropic.Anthropic(base_url=url, api_key="none", max_retries=0))
    finally:
        server.terminate()
        server.wait(timeout=60)
    check("shutdown", server.returncode == 0, server.returncode)


main()
