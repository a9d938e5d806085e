"""What a user of the official package does: run by foreign.rs with the base URL and the key of a server."""

import sys

import openai

base_url, key = sys.argv[1:]
client = openai.OpenAI(base_url=base_url, api_key=key, max_retries=0)
hello = [{"role": "user", "content": "hello"}]

assert [model.id for model in client.models.list()] == ["tiny"]

# A chat, with the extension in and out.
extension = {"kv": {"method": "h2o", "budget": 8}, "ignore_eos": True}
answer = client.chat.completions.create(
    model="tiny", messages=hello, max_tokens=12, seed=3, logprobs=True, top_logprobs=2, extra_body=extension
)
choice = answer.choices[0]
assert choice.finish_reason == "length", choice
assert choice.kv["method"] == "h2o:tokens=8" and choice.kv["retained"] == 8, choice.kv
assert len(choice.logprobs.content) == answer.usage.completion_tokens == 12
assert answer.usage.prompt_tokens_details.cached_tokens == 0

# The same as a stream, with the usage at its end.
text, usage, report = "", None, None
with client.chat.completions.create(
    model="tiny", messages=hello, max_tokens=12, seed=3, stream=True, stream_options={"include_usage": True},
    extra_body=extension,
) as stream:
    for chunk in stream:
        if chunk.usage:
            assert chunk.choices == []
            usage = chunk.usage
        for part in chunk.choices:
            text += part.delta.content or ""
            report = getattr(part, "kv", None) or report
assert text == choice.message.content, (text, choice.message.content)
assert usage.completion_tokens == 12 and report["evictions"] == choice.kv["evictions"]

# Text completions, two of them.
both = client.completions.create(model="tiny", prompt="once", n=2, max_tokens=5, seed=1, extra_body={"ignore_eos": True})
assert [part.index for part in both.choices] == [0, 1] and both.usage.completion_tokens == 10

# Errors are those of the package.
try:
    client.chat.completions.create(model="tiny", messages=hello, temperature=-1)
    raise SystemExit("a wrong temperature was accepted")
except openai.BadRequestError as error:
    assert error.param == "temperature", error
try:
    client.completions.create(model="tiny", prompt="x " * 9000, stream=True)
    raise SystemExit("a prompt longer than the context was accepted")
except openai.BadRequestError as error:
    assert error.code == "context_length_exceeded", error
try:
    openai.OpenAI(base_url=base_url, api_key="wrong", max_retries=0).models.list()
    raise SystemExit("a wrong key was accepted")
except openai.AuthenticationError:
    pass

# Leaving in the middle of an answer.
stream = client.chat.completions.create(
    model="tiny", messages=hello, max_tokens=3000, stream=True, extra_body={"ignore_eos": True}
)
next(iter(stream))
stream.close()
print("all as expected")
