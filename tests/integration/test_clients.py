"""The clients that people use: `openai` and `langchain-openai`, unchanged, against a real server."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest
from langchain_openai import ChatOpenAI
from luna_server import MODEL_NAME, LunaServer, wait_until

HELLO = [{"role": "user", "content": "Say hello to a friend."}]
# Id of "a" after a space in the model's vocabulary: with a bias of 100 it is every token of the
# answer, so that a stream has a known length.
ALWAYS_ONE_TOKEN = {"logit_bias": {"260": 100}}


@pytest.fixture
def client(server: LunaServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as it:
        yield it


@pytest.fixture
def langchain(server: LunaServer) -> ChatOpenAI:
    return ChatOpenAI(
        model=MODEL_NAME, base_url=f"{server.url}/v1", api_key="none", temperature=0, max_retries=0,
        max_tokens=16, timeout=120,
    )


def test_models_lists_the_configured_one(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL_NAME]
    assert client.models.retrieve(MODEL_NAME).object == "model"


def test_chat_answers_with_usage(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL_NAME, messages=HELLO, temperature=0, max_completion_tokens=16
    )
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage.prompt_tokens > 10 and 1 <= answer.usage.completion_tokens <= 16
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_has_the_text_of_the_whole_answer_and_its_usage(client: openai.OpenAI) -> None:
    request = {"model": MODEL_NAME, "messages": HELLO, "temperature": 0, "max_tokens": 24}
    whole = client.chat.completions.create(**request)
    chunks = list(
        client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    assert all(chunk.usage is None for chunk in chunks[:-1])
    finishes = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    assert finishes == [whole.choices[0].finish_reason]


def test_n_gives_as_many_choices_with_indices(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL_NAME, messages=HELLO, n=3, max_tokens=12, temperature=1.5, seed=7
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) > 1


def test_logprobs_are_of_the_answers_tokens(client: openai.OpenAI) -> None:
    choice = client.chat.completions.create(
        model=MODEL_NAME, messages=HELLO, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3
    ).choices[0]
    rows = choice.logprobs.content
    # A token may be part of a character: only the bytes join to the text.
    text = b"".join(bytes(row.bytes) for row in rows).decode(errors="ignore")
    assert text.startswith(choice.message.content)
    for row in rows:
        assert row.logprob <= 0 and len(row.top_logprobs) == 3
        assert row.top_logprobs[0].token == row.token  # greedy: the most likely one was drawn


def test_a_seed_makes_sampling_repeatable(client: openai.OpenAI) -> None:
    def sample(seed: int) -> str:
        answer = client.chat.completions.create(
            model=MODEL_NAME, messages=HELLO, max_tokens=24, temperature=1.2, seed=seed
        )
        return answer.choices[0].message.content

    assert sample(11) == sample(11)
    assert len({sample(seed) for seed in range(4)}) > 1


def test_completions_take_text_ids_and_stop(client: openai.OpenAI) -> None:
    request = {"model": MODEL_NAME, "max_tokens": 12, "temperature": 0}
    by_text = client.completions.create(prompt="Once upon a time", **request)
    assert by_text.choices[0].text and by_text.usage.completion_tokens <= 12
    streamed = client.completions.create(prompt="Once upon a time", stream=True, **request)
    assert "".join(c.choices[0].text for c in streamed if c.choices) == by_text.choices[0].text
    word = by_text.choices[0].text.split()[1]
    stopped = client.completions.create(prompt="Once upon a time", stop=[word], **request)
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].text == by_text.choices[0].text.split(word)[0]
    by_ids = client.completions.create(prompt=[1, 2, 3], logprobs=2, **request)
    assert len(by_ids.choices[0].logprobs.tokens) == by_ids.usage.completion_tokens


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="no-such-model", messages=HELLO)
    assert caught.value.code == "model_not_found" and "no-such-model" in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2.0}, "top_p"),
        ({"max_tokens": -3}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_a_wrong_field_is_a_bad_request_that_names_it(
    client: openai.OpenAI, fields: dict, param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL_NAME, messages=HELLO, **fields)
    assert caught.value.param == param


def test_a_prompt_that_cannot_fit_is_refused_with_the_numbers(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model=MODEL_NAME, messages=[{"role": "user", "content": "word " * 20000}]
        )
    assert caught.value.code == "context_length_exceeded" and "8192" in str(caught.value)


def test_an_abandoned_stream_frees_its_kv_at_the_next_step(
    server: LunaServer, client: openai.OpenAI
) -> None:
    stream = client.chat.completions.create(
        model=MODEL_NAME, messages=HELLO, stream=True, max_tokens=4000, **ALWAYS_ONE_TOKEN
    )
    for _ in zip(range(4), stream, strict=False):
        pass
    assert server.metric("luna_requests_running") == 1
    cancelled = server.metric("luna_requests_total", code="cancelled")
    stream.close()
    wait_until(server.is_idle, 10, "the sequence and its KV blocks are gone")
    assert server.metric("luna_requests_total", code="cancelled") == cancelled + 1
    steps = server.metric("luna_steps_total")
    assert server.metric("luna_steps_total") == steps, "steps go on without a request"


def test_langchain_invokes_with_usage(langchain: ChatOpenAI) -> None:
    answer = langchain.invoke("Say hello to a friend.")
    assert answer.content
    assert answer.usage_metadata["output_tokens"] >= 1
    assert answer.response_metadata["finish_reason"] in ("stop", "length")


def test_langchain_streams_what_it_invokes(langchain: ChatOpenAI) -> None:
    chunks = list(langchain.stream("Say hello to a friend."))
    assert len(chunks) > 2
    assert "".join(chunk.content for chunk in chunks) == langchain.invoke("Say hello to a friend.").content


def test_langchain_batches(langchain: ChatOpenAI) -> None:
    questions = ["Name a colour.", "Name an animal.", "Name a city."]
    alone = [langchain.invoke(question).content for question in questions]
    assert [answer.content for answer in langchain.batch(questions)] == alone


def test_langchain_raises_the_servers_error(server: LunaServer) -> None:
    wrong = ChatOpenAI(model="nobody", base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.NotFoundError):
        wrong.invoke("hello")


def test_a_client_that_pipelines_and_leaves_frees_its_kv(server: LunaServer) -> None:
    body = b'{"messages":[{"role":"user","content":"x"}],"max_tokens":4000,"ignore_eos":true}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    port = int(server.url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(head + body + head[:20])
        wait_until(lambda: server.metric("luna_requests_running") == 1, 30, "the request runs")
    wait_until(lambda: server.metric("luna_requests_running") == 0, 10, "its KV is free")


def test_a_character_made_of_several_tokens_is_never_sent_in_parts(
    client: openai.OpenAI, run_luna: Callable, model: Path
) -> None:
    """Only the tokens of one emoji may be drawn, in any order: a heap of whole and broken characters."""
    ids = json.loads(run_luna("tokenize", "--model", model, "--jsonl", text=json.dumps("🦙") + "\n").stdout)
    assert len(ids) > 1, f"one token is the whole character: {ids}"
    texts = []
    for seed in range(8):
        asked = {
            "model": MODEL_NAME, "messages": HELLO, "max_tokens": 60, "temperature": 2, "seed": seed,
            "logit_bias": {str(i): 100 for i in ids}, "logprobs": True,
        }
        whole = client.chat.completions.create(**asked).choices[0]
        made = b"".join(bytes(token.bytes) for token in whole.logprobs.content)
        # A character that the last token left open may be sent as one mark, or not at all.
        wanted = made.decode("utf-8", "replace")
        assert whole.message.content.rstrip("\ufffd") == wanted.rstrip("\ufffd")
        pieces = [
            chunk.choices[0].delta.content or ""
            for chunk in client.chat.completions.create(**asked, stream=True)
            if chunk.choices
        ]
        assert "".join(pieces) == whole.message.content
        texts.append(wanted)
    assert any("🦙" in text for text in texts), "no order of the tokens made the character"


def test_a_completions_offsets_go_on_through_its_stream(client: openai.OpenAI) -> None:
    asked = {"model": MODEL_NAME, "prompt": "Once", "max_tokens": 8, "temperature": 0, "logprobs": 1}
    whole = client.completions.create(**asked).choices[0]
    offsets = []
    for chunk in client.completions.create(**asked, stream=True):
        if chunk.choices and chunk.choices[0].logprobs:
            offsets += chunk.choices[0].logprobs.text_offset
    assert offsets == whole.logprobs.text_offset
    assert offsets[0] == 0 and offsets == sorted(offsets) and offsets[-1] < len(whole.text)


def test_an_echo_without_tokens_streams_as_events(client: openai.OpenAI) -> None:
    chunks = list(
        client.completions.create(
            model=MODEL_NAME, prompt=["One", "Two"], echo=True, max_tokens=0, stream=True,
            stream_options={"include_usage": True},
        )
    )
    texts = {0: "", 1: ""}
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == {0: "One", 1: "Two"}
    assert chunks[-1].usage.completion_tokens == 0 and chunks[-1].usage.prompt_tokens >= 2
