#!/usr/bin/env python3
"""Drives `shamrock serve` with the official OpenAI and Anthropic clients.

    python3 -m venv clients && clients/bin/pip install openai anthropic openapi-spec-validator
    clients/bin/python tools/api-clients.py target/release/shamrock

Starts a server over clover-nano on a free port, checks every API both whole and streamed and what the server says
of them, and stops it.
"""

import json
import sys
import urllib.request

import anthropic
import openai
import openapi_spec_validator

from served import check, start

MODEL = "clover-nano"
SUM = [{"role": "user", "content": "What is 47 * 36?"}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "colour": {"enum": ["red", "green"]},
    },
    "required": ["name", "age", "colour"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
ANNA = [{"role": "user", "content": "Tell me about Anna, who is 31."}]
STORY = [{"role": "user", "content": "Write a short story with the words fox, lantern and river."}]


def is_person(text):
    value = json.loads(text)
    return list(value) == ["name", "age", "colour"] and 0 <= value["age"] <= 150 and value["colour"] in ("red", "green")


def is_weather(value):
    return set(value) == {"city", "days"} and value["city"] in ("Rome", "Oslo") and 1 <= value["days"] <= 9


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
        client.chat.completions.create(model=MODEL, messages=SUM, modalities=["audio"])
        check("chat: refusal", False)
    except openai.BadRequestError as error:
        check("chat: refusal", (error.param, error.code) == ("modalities", "unsupported_value"), error)
    try:
        client.chat.completions.create(model="other", messages=SUM)
        check("chat: other model", False)
    except openai.NotFoundError as error:
        check("chat: other model", error.code == "model_not_found", error)


def chat_forms(client):
    create = client.chat.completions.create
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    for mode in ["denoise", "draft", "causal", "auto"]:
        for effort in ["none", "high"]:
            extra = {"shamrock": {"mode": mode}}
            whole = create(
                model=MODEL, messages=ANNA, response_format=schema, reasoning_effort=effort, max_tokens=400,
                extra_body=extra,
            )
            check(f"schema: {mode}, reasoning {effort}", is_person(whole.choices[0].message.content), whole)
    with client.chat.completions.stream(model=MODEL, messages=ANNA, response_format=schema) as stream:
        final = stream.get_final_completion()
    check("schema: stream", is_person(final.choices[0].message.content), final)
    cut = create(model=MODEL, messages=ANNA, response_format={"type": "json_object"}, max_tokens=3)
    check("schema: cut", cut.choices[0].finish_reason == "length", cut)
    try:
        bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "wombat"}}}
        create(model=MODEL, messages=ANNA, response_format=bad)
        check("schema: bad", False)
    except openai.BadRequestError as error:
        check("schema: bad", error.code == "invalid_schema" and "wombat" in str(error), error)
    told = create(model=MODEL, messages=SUM, logprobs=True, top_logprobs=3)
    tokens = told.choices[0].logprobs.content
    check("top_logprobs", all(len(t.top_logprobs) == 3 for t in tokens), tokens)
    biased = create(model=MODEL, messages=SUM, logit_bias={"300": 100}, max_tokens=4, logprobs=True)
    check("logit_bias", len({t.token for t in biased.choices[0].logprobs.content}) == 1, biased)


def chat_tools(client):
    tool = {"type": "function", "function": {"name": "weather", "parameters": WEATHER, "strict": True}}
    create = client.chat.completions.create
    for choice in ["required", {"type": "function", "function": {"name": "weather"}}]:
        whole = create(
            model=MODEL, messages=ANNA, tools=[tool], tool_choice=choice, parallel_tool_calls=False, max_tokens=400
        )
        calls = whole.choices[0].message.tool_calls
        check("tools: call", is_weather(json.loads(calls[0].function.arguments)), whole)
        check("tools: finish", whole.choices[0].finish_reason == "tool_calls", whole)
    with client.chat.completions.stream(
        model=MODEL, messages=ANNA, tools=[tool], tool_choice="required", parallel_tool_calls=False
    ) as stream:
        final = stream.get_final_completion()
    streamed = final.choices[0].message.tool_calls[0].function
    check("tools: stream", streamed.name == "weather" and is_weather(json.loads(streamed.arguments)), final)
    free = create(model=MODEL, messages=ANNA, tools=[tool], max_tokens=60)
    check("tools: auto", free.choices[0].finish_reason in ("stop", "length", "tool_calls"), free)
    result = {"role": "tool", "tool_call_id": calls[0].id, "content": "20 degrees"}
    again = create(
        model=MODEL, messages=[*ANNA, whole.choices[0].message.model_dump(exclude_none=True), result], tools=[tool],
        max_tokens=20,
    )
    check("tools: result", again.usage.completion_tokens > 0, again)


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
    text = {"format": {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}}
    form = client.responses.create(model=MODEL, input=ANNA, text=text)
    check("response: schema", is_person(form.output_text), form)
    tool = {"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}
    called = client.responses.create(
        model=MODEL, input=ANNA, tools=[tool], tool_choice="required", parallel_tool_calls=False
    )
    call = called.output[-1]
    check("response: call", call.type == "function_call" and is_weather(json.loads(call.arguments)), called)
    with client.responses.stream(
        model=MODEL, input=ANNA, tools=[tool], tool_choice="required", parallel_tool_calls=False
    ) as stream:
        deltas = "".join(e.delta for e in stream if e.type == "response.function_call_arguments.delta")
        final = stream.get_final_response()
    check("response: call streamed", deltas == final.output[-1].arguments == call.arguments, final)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "20 degrees"}
    follow = [*ANNA, call.model_dump(exclude_none=True), result]
    again = client.responses.create(model=MODEL, input=follow, tools=[tool], max_output_tokens=20)
    check("response: result", again.usage.output_tokens > 0, again)
    told = client.responses.create(
        model=MODEL, input=SUM, include=["message.output_text.logprobs"], top_logprobs=2
    )
    part = told.output[-1].content[0]
    check("response: logprobs", "".join(t.token for t in part.logprobs) == part.text, part)
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
    tool = {"name": "weather", "input_schema": WEATHER}
    choice = {"type": "tool", "name": "weather"}
    called = client.messages.create(model=MODEL, max_tokens=400, messages=ANNA, tools=[tool], tool_choice=choice)
    block = called.content[-1]
    check("message: call", (block.type, called.stop_reason) == ("tool_use", "tool_use"), called)
    check("message: input", is_weather(block.input), called)
    with client.messages.stream(
        model=MODEL, max_tokens=400, messages=ANNA, tools=[tool], tool_choice=choice
    ) as stream:
        final = stream.get_final_message()
    check("message: call streamed", final.content[-1].input == block.input, final)
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "20 degrees"}
    follow = [*ANNA, {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
    again = client.messages.create(model=MODEL, max_tokens=20, messages=follow, tools=[tool])
    check("message: result", again.usage.output_tokens > 0, again)
    try:
        search = {"type": "web_search_20250305", "name": "web_search"}
        client.messages.create(model=MODEL, max_tokens=1, messages=SUM, tools=[search])
        check("message: refusal", False)
    except anthropic.BadRequestError as error:
        check("message: refusal", "tools" in str(error), error)


def description(url):
    document = json.load(urllib.request.urlopen(f"{url}/openapi.json"))
    problems = [error.message for error in openapi_spec_validator.OpenAPIV31SpecValidator(document).iter_errors()]
    check("openapi.json: is an OpenAPI document", document["openapi"].startswith("3.1") and not problems, problems)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    server, url = start(sys.argv[1])
    try:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        check("models", [model.id for model in client.models.list()] == [MODEL])
        description(url)
        chat(client)
        chat_forms(client)
        chat_tools(client)
        completions(client)
        responses(client)
        messages(anthropic.Anthropic(base_url=url, api_key="none", max_retries=0))
    finally:
        server.terminate()
        server.wait(timeout=60)
    check("shutdown", server.returncode == 0, server.returncode)


main()
