"""Stands in for vLLM where tests run benches/peers/vllm_engine.py: an engine that gives each request a token a step, without a model."""

import os
import time
import types

from vllm.sampling_params import SamplingParams as SamplingParams


class LLM:
    def __init__(self, model, **options):
        self.llm_engine = Engine(options)


class Engine:
    def __init__(self, options):
        self.options, self.requests = options, {}

    def add_request(self, name, prompt, params, lora_request=None):
        held = len(prompt["prompt_token_ids"]) + params.max_tokens
        assert held <= self.options["max_model_len"] and (lora_request is None or self.options["enable_lora"])
        # What a request is given first, and how many tokens.
        start = sum(prompt["prompt_token_ids"]) + (lora_request.lora_int_id if lora_request else 0)
        self.requests[name] = [start, params.max_tokens - int(os.environ.get("VLLM_STUB_LACKS", "0"))]

    def has_unfinished_requests(self):
        return bool(self.requests)

    def step(self):
        time.sleep(1e-4)
        outputs = []
        for name, left in list(self.requests.items()):
            left[0], left[1] = left[0] + 1, left[1] - 1
            outputs.append(types.SimpleNamespace(request_id=name, outputs=[types.SimpleNamespace(token_ids=[left[0]])]))
            if left[1] == 0:
                del self.requests[name]
        return outputs
