import enum


class RequestOutputKind(enum.Enum):
    DELTA = 1


class SamplingParams:
    def __init__(self, max_tokens, temperature, ignore_eos, detokenize, output_kind):
        assert temperature == 0 and ignore_eos and output_kind is RequestOutputKind.DELTA
        self.max_tokens = max_tokens
