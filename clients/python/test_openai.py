"""The official Python client against a running server. Nothing here depends on what the model says."""

import asyncio

import openai
import pytest

USER = [{"role": "user", "content": "Name three colours of the rainbow."}]


def test_models(client, model):
    listed = client.models.list()
    assert listed.object == "list"
    assert model in [m.id for m in listed.data]
    one = client.models.retrieve(model)
    assert one.id == model and one.object == "model" and one.created > 0 and one.owned_by


def test_chat(client, model):
    r = client.chat.completions.create(model=model, messages=USER, max_completion_tokens=8, temperature=0)
    assert r.id.startswith("chatcmpl-") and r.object == "chat.completion" and r.model == model
    choice = r.choices[0]
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    u = r.usage
    assert u.prompt_tokens > 0 and 0 < u.completion_tokens <= 8
    assert u.total_tokens == u.prompt_tokens + u.completion_tokens
    assert 0 <= u.prompt_tokens_details.cached_tokens <= u.prompt_tokens
    assert r._request_id


def test_chat_roles_and_parts(client, model):
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Say "}, {"type": "text", "text": "one."}]},
        {"role": "assistant", "content": "one"},
        {"role": "user", "name": "ann", "content": "Now two. \u0000 \U0001f600"},
    ]
    r = client.chat.completions.create(model=model, messages=messages, max_tokens=2, temperature=0)
    assert r.usage.completion_tokens <= 2


def test_chat_answer_fed_back(client, model):
    first = client.chat.completions.create(model=model, messages=USER, max_tokens=4)
    messages = USER + [first.choices[0].message, {"role": "user", "content": "Go on."}]
    second = client.chat.completions.create(model=model, messages=messages, max_tokens=4)
    assert second.usage.prompt_tokens > first.usage.prompt_tokens


def test_chat_stream_with_usage(client, model):
    chunks = list(
        client.chat.completions.create(
            model=model, messages=USER, max_tokens=8, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    assert len({(c.id, c.created, c.model, c.object, c.system_fingerprint) for c in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[0].choices[0].delta.content == ""
    assert all(c.choices[0].delta.role is None for c in chunks[1:-1])
    assert [c.choices[0].finish_reason for c in chunks[:-1] if c.choices[0].finish_reason] in (["stop"], ["length"])
    assert chunks[-2].choices[0].finish_reason and chunks[-2].choices[0].delta.content is None
    assert all(c.usage is None for c in chunks[:-1])
    assert chunks[-1].choices == [] and 0 < chunks[-1].usage.completion_tokens <= 8
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1])


def test_chat_stream_without_usage(client, model):
    for c in client.chat.completions.create(model=model, messages=USER, max_tokens=3, stream=True):
        assert len(c.choices) == 1 and c.usage is None


def test_chat_stream_helper(client, model):
    with client.chat.completions.stream(
        model=model, messages=USER, max_tokens=6, temperature=0, stream_options={"include_usage": True}
    ) as stream:
        kinds = {event.type for event in stream}
        try:
            final = stream.get_final_completion()
        except openai.LengthFinishReasonError as e:  # the helper's way to say "length"
            final = e.completion
    assert "content.delta" in kinds and "content.done" in kinds
    assert final.choices[0].message.content and final.usage.completion_tokens > 0


def test_running_usage(client, model):
    chunks = list(
        client.chat.completions.create(
            model=model, messages=USER, max_tokens=5, stream=True,
            stream_options={"include_usage": True, "continuous_usage_stats": True}, extra_body={"ignore_eos": True},
        )
    )
    counts = [c.usage.completion_tokens for c in chunks if c.usage]
    assert len(counts) >= 3 and counts == sorted(counts) and counts[-1] == 5


def test_ignore_eos_and_min_tokens(client, model):
    r = client.chat.completions.create(
        model=model, messages=USER, max_tokens=20, extra_body={"ignore_eos": True, "min_tokens": 20}
    )
    assert r.usage.completion_tokens == 20 and r.choices[0].finish_reason == "length"


def test_choices(client, model):
    r = client.chat.completions.create(model=model, messages=USER, n=3, max_tokens=4, seed=7, temperature=1)
    assert [c.index for c in r.choices] == [0, 1, 2]
    seen = {}
    for c in client.chat.completions.create(model=model, messages=USER, n=3, max_tokens=4, seed=7, stream=True):
        for choice in c.choices:
            seen.setdefault(choice.index, []).append(choice.finish_reason)
    assert sorted(seen) == [0, 1, 2] and all(reasons[-1] for reasons in seen.values())


def test_chat_logprobs(client, model):
    r = client.chat.completions.create(
        model=model, messages=USER, max_tokens=4, logprobs=True, top_logprobs=3, temperature=0, extra_body={"ignore_eos": True}
    )
    content = r.choices[0].logprobs.content
    assert len(content) == 4
    for token in content:
        assert -9999 <= token.logprob <= 0 and token.bytes is not None and len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob == max(t.logprob for t in token.top_logprobs)
    text = bytes(b for token in content for b in token.bytes)
    assert text.startswith(r.choices[0].message.content.encode()[:4])


def test_stop(client, model):
    args = dict(model=model, messages=USER, max_tokens=16, temperature=0)
    whole = client.chat.completions.create(**args).choices[0].message.content
    stop = whole[len(whole) // 2 :][:3]
    r = client.chat.completions.create(**args, stop=[stop, "\u2603never\u2603"])
    assert stop not in r.choices[0].message.content and r.choices[0].finish_reason == "stop"


def test_completion(client, model):
    r = client.completions.create(model=model, prompt="Once upon a time", max_tokens=6, temperature=0)
    assert r.id.startswith("cmpl-") and r.object == "text_completion"
    assert r.choices[0].finish_reason in ("stop", "length") and r.usage.completion_tokens <= 6


def test_completion_default_length(client, model):
    r = client.completions.create(model=model, prompt="Once upon a time", extra_body={"ignore_eos": True})
    assert r.usage.completion_tokens == 16 and r.choices[0].finish_reason == "length"


def test_completion_stream(client, model):
    chunks = list(
        client.completions.create(
            model=model, prompt="Once upon", max_tokens=4, stream=True, stream_options={"include_usage": True}
        )
    )
    assert all(isinstance(c.choices[0].text, str) for c in chunks[:-1])
    assert chunks[-2].choices[0].finish_reason and chunks[-1].choices == [] and chunks[-1].usage.total_tokens > 0


def test_completion_prompts_times_n(client, model):
    prompts = ["One, two,", "Red, green,"]
    r = client.completions.create(model=model, prompt=prompts, n=2, max_tokens=2, echo=True)
    assert [c.index for c in r.choices] == [0, 1, 2, 3]
    assert all(c.text.startswith(prompts[c.index // 2]) for c in r.choices)


def test_completion_tokens(client, model):
    r = client.completions.create(model=model, prompt=[[1, 2, 3], [4, 5]], max_tokens=1)
    assert len(r.choices) == 2 and r.usage.prompt_tokens >= 5


def test_completion_echo_logprobs(client, model):
    """What lm-eval sends to score a text."""
    prompt = "The sky is blue."
    r = client.completions.create(
        model=model, prompt=prompt, max_tokens=1, echo=True, logprobs=10, temperature=0, seed=1, extra_body={"ignore_eos": True}
    )
    lp = r.choices[0].logprobs
    assert r.choices[0].text.startswith(prompt)
    assert len(lp.tokens) == len(lp.token_logprobs) == len(lp.top_logprobs) == len(lp.text_offset)
    assert lp.token_logprobs[0] is None and all(-9999 <= p <= 0 for p in lp.token_logprobs[1:])
    assert "".join(lp.tokens[:-1]).startswith(prompt)
    for offset, token in list(zip(lp.text_offset, lp.tokens))[:-1]:
        assert r.choices[0].text[offset:].startswith(token)
    for token, logprob, top in list(zip(lp.tokens, lp.token_logprobs, lp.top_logprobs))[1:]:
        assert top[token] == logprob and len(top) >= 5


def test_completion_score_only(client, model):
    r = client.completions.create(model=model, prompt="The sky is blue.", max_tokens=0, echo=True, logprobs=0)
    assert r.choices[0].text == "The sky is blue." and r.usage.completion_tokens == 0
    assert len(r.choices[0].logprobs.tokens) == r.usage.prompt_tokens


@pytest.mark.parametrize(
    "param, body",
    [
        ("temperature", {"temperature": 3}),
        ("temperature", {"extra_body": {"temperature": "hot"}}),
        ("n", {"n": 9}),
        ("top_p", {"top_p": 0}),
        ("max_tokens", {"max_tokens": 0}),
        ("stream_options", {"stream_options": {"include_usage": True}}),
        ("messages", {"messages": []}),
        ("messages[0].role", {"messages": [{"role": "robot", "content": "x"}]}),
        ("messages[0].content", {"messages": [{"role": "user", "content": None}]}),
        ("messages[0].content[0].type", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
        ("tools", {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}),
        ("response_format", {"response_format": {"type": "json_object"}}),
        ("logit_bias.cat", {"logit_bias": {"cat": 1}}),
        ("top_logprobs", {"top_logprobs": 2}),
    ],
)
def test_bad_request(client, model, param, body):
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(**{"model": model, "messages": USER, "max_tokens": 1, **body})
    assert e.value.param == param and e.value.type == "invalid_request_error" and param in str(e.value)


def test_prompt_beyond_context(client, model):
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "many words " * 150000}])
    assert e.value.code == "context_length_exceeded"


def test_answer_beyond_context(client, model):
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model=model, messages=USER, max_tokens=100_000_000)
    assert e.value.code == "context_length_exceeded"


@pytest.mark.parametrize("stream", [False, True])
def test_unknown_model(client, stream):
    with pytest.raises(openai.NotFoundError) as e:
        client.chat.completions.create(model="no-such-model", messages=USER, stream=stream)
    assert e.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no-such-model")


def test_unknown_url(client):
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="x", input="x")


def test_key(url, key, model):
    """A server with a key refuses another; one without takes any."""
    other = openai.OpenAI(base_url=url + "/v1", api_key="wrong-" + key, max_retries=0)
    if not key:
        assert other.models.list().data
        return
    with pytest.raises(openai.AuthenticationError) as e:
        other.models.list()
    assert e.value.code == "invalid_api_key"


def test_abandoned_stream(client, model):
    for _ in range(3):
        stream = client.chat.completions.create(model=model, messages=USER, stream=True, extra_body={"ignore_eos": True}, max_tokens=200)
        next(iter(stream))
        stream.close()
    test_chat(client, model)


def test_many_at_once(url, key, model):
    async def one(client, i):
        text, usage = "", None
        stream = await client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": f"Count from {i}."}], max_tokens=4, stream=True,
            stream_options={"include_usage": True},
        )
        async for c in stream:
            text += (c.choices[0].delta.content or "") if c.choices else ""
            usage = c.usage or usage
        return text, usage

    async def run():
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key=key or "none", timeout=300) as client:
            return await asyncio.gather(*(one(client, i) for i in range(16)))

    for _, usage in asyncio.run(run()):
        assert 0 < usage.completion_tokens <= 4
