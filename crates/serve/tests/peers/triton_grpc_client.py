"""Asks a server by Triton's client for gRPC, and by a probe's health check. The vectors go to standard output; all else is checked here."""

import json
import sys

import grpc
import numpy
import tritonclient.grpc as triton
from checksum import checksum
from tritonclient.utils import InferenceServerException

client = triton.InferenceServerClient(sys.argv[1])
assert client.is_server_live() and client.is_server_ready()
assert list(client.get_server_metadata().extensions) == ["binary_tensor_data", "parameters", "trifuse_regions"]
for name in ("tiny", "left", "right", "op.attention"):
    assert client.is_model_ready(name) and client.is_model_ready(name, "1")
    assert client.get_model_metadata(name).name == name
metadata = client.get_model_metadata("tiny", as_json=True)
assert [row["name"] for row in metadata["inputs"]] == ["ids", "lengths"] and metadata["outputs"][0]["datatype"] == "FP32", metadata

# A probe has a channel of its own, and messages that it knows beforehand.
channel = grpc.insecure_channel(sys.argv[1])
check = channel.unary_unary("/grpc.health.v1.Health/Check", request_serializer=bytes, response_deserializer=bytes)
assert check(b"") == b"\x08\x01"


def tensor(name, values, datatype):
    given = triton.InferInput(name, list(values.shape), datatype)
    given.set_data_from_numpy(values)
    return given


vectors = {}
for name in ("tiny", "left"):
    ids = tensor("ids", numpy.array([[0, 4, 5, 1], [0, 7, 1, 0]], numpy.int32), "INT32")
    lengths = tensor("lengths", numpy.array([4, 3], numpy.int32), "INT32")
    outputs = [triton.InferRequestedOutput("embedding")]
    answer = client.infer(name, [ids, lengths], outputs=outputs, request_id="7", client_timeout=30, timeout=30_000_000)
    assert answer.get_response().id == "7" and answer.get_response().model_name == name
    vectors[name] = [list(map(float, row)) for row in answer.as_numpy("embedding")]


def attention(q, k, v):
    scores = numpy.einsum("bqhd,bkhd->bhqk", q, k) / numpy.sqrt(q.shape[-1])
    scores = numpy.exp(scores - scores.max(-1, keepdims=True))
    return numpy.einsum("bhqk,bkhd->bqhd", scores / scores.sum(-1, keepdims=True), v)


random = numpy.random.default_rng(7)
# The last one has more bytes than a window of the protocol beneath.
for rows, datatype, dtype, most in ((33, "FP32", numpy.float32, 1e-5), (33, "FP16", numpy.float16, 4e-3), (3000, "FP32", numpy.float32, 1e-5)):
    own = [random.standard_normal((2, count, 4, 16)).astype(dtype) for count in (rows, 70, 70)]
    inputs = [tensor(name, values, datatype) for name, values in zip("qkv", own)]
    outputs = [triton.InferRequestedOutput("o"), triton.InferRequestedOutput("checksum")]
    answer = client.infer("op.attention", inputs, outputs=outputs, parameters={"causal": False, "scale": 0.25})
    o = answer.as_numpy("o")
    expected = attention(*(values.astype(numpy.float64) for values in own))
    assert o.dtype == dtype and o.shape == own[0].shape and numpy.abs(o - expected).max() < most, numpy.abs(o - expected).max()
    assert answer.as_numpy("checksum").dtype == numpy.uint64 and answer.as_numpy("checksum") == [checksum(o.tobytes())]


def refused(status, words, ask):
    try:
        ask()
    except InferenceServerException as error:
        assert error.status() == f"StatusCode.{status}" and words in error.message(), error
        return
    raise AssertionError("nothing was refused")


refused("NOT_FOUND", "nobody", lambda: client.infer("nobody", inputs))
refused("INVALID_ARGUMENT", "window", lambda: client.infer("op.attention", inputs, parameters={"window": 3}))
refused("UNIMPLEMENTED", "ModelStatistics", lambda: client.get_inference_statistics("tiny"))
refused("UNIMPLEMENTED", "compressed", lambda: client.infer("op.attention", inputs, compression_algorithm="gzip"))

json.dump(vectors, sys.stdout)
