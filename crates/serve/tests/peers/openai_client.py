"""Asks a server by OpenAI's library. The vectors go to standard output; all else is checked here."""

import json
import sys

import numpy
import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="secret")
models = {model.id for model in client.models.list()}
assert models == {"tiny", "left", "right", "parrot", "loud"}, models
assert client.models.retrieve("left").parent == "tiny"

vectors = {}
for name in ("tiny", "left"):
    answer = client.embeddings.create(model=name, input=["w1 w2", "w3"])
    plain = client.embeddings.create(model=name, input=["w1 w2", "w3"], encoding_format="float")
    vectors[name] = [list(map(float, row.embedding)) for row in answer.data]
    shown = [list(map(float, numpy.float32(row.embedding))) for row in plain.data]
    assert vectors[name] == shown, "both forms are the same numbers"
    assert answer.usage.prompt_tokens == 7, answer.usage
ids = client.embeddings.create(model="tiny", input=[0, 4, 5, 1]).data[0].embedding
assert list(map(float, ids)) == vectors["tiny"][0]
mixed = client.embeddings.create(model="tiny", input=["w1 w2", "w1 w2"], extra_body={"adapters": [None, "left"]})
assert [list(map(float, row.embedding)) for row in mixed.data] == [vectors["tiny"][0], vectors["left"][0]]

chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "abc"}]
whole = client.chat.completions.create(model="parrot", messages=chat)
assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("cba", "stop")
stream = client.chat.completions.create(model="loud", messages=chat, stream=True, stream_options={"include_usage": True})
chunks = list(stream)
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "CBA"
assert chunks[-1].usage.completion_tokens == 3
text = client.completions.create(model="parrot", prompt="xyz", max_tokens=2)
assert (text.choices[0].text, text.choices[0].finish_reason) == ("zy", "length")


def refused(kind, code, ask):
    try:
        ask()
    except kind as error:
        assert error.code == code, error
        return error
    raise AssertionError(f"{kind} was not raised")


for name in ("nobody", "tiny:nobody"):
    refused(openai.NotFoundError, "model_not_found", lambda: client.embeddings.create(model=name, input="w1"))
error = refused(openai.BadRequestError, "unsupported_parameter", lambda: client.embeddings.create(model="tiny", input="w1", dimensions=8))
assert error.param == "dimensions", error.param
stranger = openai.OpenAI(base_url=sys.argv[1], api_key="other")
refused(openai.AuthenticationError, "invalid_api_key", lambda: stranger.models.list())
broken = client.completions.create(model="parrot", prompt="abc!", stream=True)
try:
    for _ in broken:
        pass
except openai.APIError as error:
    assert error.code == "internal", error
else:
    raise AssertionError("a stream that fails was taken for whole")

json.dump({"vectors": vectors}, sys.stdout)
