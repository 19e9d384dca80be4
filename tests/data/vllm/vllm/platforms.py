import os


class current_platform:
    @staticmethod
    def get_device_name():
        return os.environ["VLLM_STUB_DEVICE"]
