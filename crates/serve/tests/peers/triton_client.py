"""Asks a server by Triton's client for HTTP. The vectors go to standard output; all else is checked here."""

import json
import sys

import numpy
import tritonclient.http as triton
from checksum import checksum
from tritonclient.utils import InferenceServerException, shared_memory

client = triton.InferenceServerClient(sys.argv[1])
assert client.is_server_live() and client.is_server_ready()
assert client.get_server_metadata()["extensions"] == ["binary_tensor_data", "parameters", "system_shared_memory", "trifuse_regions", "statistics"]
names = ["tiny", "left", "right", "op.attention"]
assert [row["name"] for row in client.get_model_repository_index()] == names
for name in names:
    assert client.is_model_ready(name) and client.is_model_ready(name, "1")
    assert client.get_model_metadata(name)["name"] == name


def tensor(name, values, datatype, binary=True):
    given = triton.InferInput(name, list(values.shape), datatype)
    given.set_data_from_numpy(values, binary_data=binary)
    return given


vectors = {}
for name in ("tiny", "left"):
    given = []
    for binary in (True, False):
        ids = tensor("ids", numpy.array([[0, 4, 5, 1], [0, 7, 1, 0]], numpy.int32), "INT32", binary)
        lengths = tensor("lengths", numpy.array([4, 3], numpy.int32), "INT32", binary)
        outputs = [triton.InferRequestedOutput("embedding", binary_data=binary)]
        answer = client.infer(name, [ids, lengths], outputs=outputs, request_id="7")
        assert answer.get_response()["id"] == "7"
        given.append(answer.as_numpy("embedding"))
    assert (given[0] == given[1]).all(), "both forms are the same numbers"
    vectors[name] = [list(map(float, row)) for row in given[0]]


def attention(q, k, v):
    scores = numpy.einsum("bqhd,bkhd->bhqk", q, k) / numpy.sqrt(q.shape[-1])
    scores = numpy.exp(scores - scores.max(-1, keepdims=True))
    return numpy.einsum("bhqk,bkhd->bqhd", scores / scores.sum(-1, keepdims=True), v)


random = numpy.random.default_rng(7)
wide = [random.standard_normal((2, rows, 4, 16)) for rows in (33, 70, 70)]
for datatype, dtype, most in (("FP32", numpy.float32, 1e-5), ("FP16", numpy.float16, 4e-3)):
    own = [values.astype(dtype) for values in wide]
    expected = attention(*(values.astype(numpy.float64) for values in own))
    inputs = [tensor(name, values, datatype) for name, values in zip("qkv", own)]
    o = client.infer("op.attention", inputs).as_numpy("o")
    assert o.dtype == dtype and numpy.abs(o - expected).max() < most, numpy.abs(o - expected).max()
    outputs = [triton.InferRequestedOutput("o"), triton.InferRequestedOutput("checksum")]
    again = client.infer("op.attention", inputs, outputs=outputs, timeout=30_000_000)
    assert (again.as_numpy("o") == o).all()
    assert again.as_numpy("checksum").dtype == numpy.uint64 and again.as_numpy("checksum") == [checksum(o.tobytes())]
    # The same by shared memory, in and out.
    size = sum(values.nbytes for values in own)
    memory = shared_memory.create_shared_memory_region("own", f"/trifuse-peer-{datatype}", size + o.nbytes)
    try:
        shared_memory.set_shared_memory_region(memory, own)
        client.register_system_shared_memory("own", f"/trifuse-peer-{datatype}", size + o.nbytes)
        assert [row["name"] for row in client.get_system_shared_memory_status()] == ["own"]
        inputs, at = [], 0
        for name, values in zip("qkv", own):
            inputs.append(triton.InferInput(name, list(values.shape), datatype))
            inputs[-1].set_shared_memory("own", values.nbytes, offset=at)
            at += values.nbytes
        outputs = [triton.InferRequestedOutput("o")]
        outputs[0].set_shared_memory("own", o.nbytes, offset=at)
        client.infer("op.attention", inputs, outputs=outputs)
        found = shared_memory.get_contents_as_numpy(memory, dtype, o.shape, offset=at)
        assert (found == o).all(), "shared memory has the same bits"
        client.unregister_system_shared_memory("own")
        assert client.get_system_shared_memory_status() == []
    finally:
        shared_memory.destroy_shared_memory_region(memory)


def refused(status, words, ask):
    try:
        ask()
    except InferenceServerException as error:
        assert error.status() == str(status) and words in error.message(), error
        return
    raise AssertionError("nothing was refused")


refused(404, "nobody", lambda: client.infer("nobody", inputs))
refused(404, "own", lambda: client.infer("op.attention", inputs))
refused(400, "window", lambda: client.infer("op.attention", [tensor(n, v, "FP16") for n, v in zip("qkv", own)], parameters={"window": 3}))
assert client.get_inference_statistics("op.attention")["model_stats"][0]["inference_count"] == 6

json.dump(vectors, sys.stdout)
