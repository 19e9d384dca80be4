//! `adapter_model.safetensors`, alone and as an adapter's.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trifuse::adapters::peft::inspect_bytes;
use trifuse::safetensors_file::TensorFile;

const CONFIG: &[u8] = br#"{"peft_type":"LORA","r":2,"lora_alpha":4}"#;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(file) = TensorFile::from_bytes("adapter_model.safetensors", bytes.to_vec()) {
        for name in file.names() {
            let _ = file.floats(&name);
        }
    }
    let inspection = inspect_bytes("adapter", CONFIG, bytes.to_vec());
    assert!(!inspection.faults.is_empty() || !inspection.modules.is_empty());
});
