class LoRARequest:
    def __init__(self, lora_name, lora_int_id, lora_path):
        with open(f"{lora_path}/adapter_model.safetensors", "rb") as file:
            assert len(file.read(8)) == 8 and lora_int_id >= 1
        self.lora_int_id = lora_int_id
