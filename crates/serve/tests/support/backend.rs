//! The device on which tests run their models: the processor, or what `TRIFUSE_BACKEND` names as on the command line.

use trifuse::DType;
use trifuse::backends::{AnyDevice, Choice};
use trifuse::device::Device as _;

const VARIABLE: &str = "TRIFUSE_BACKEND";

/// What the variable names.
fn named() -> String {
    std::env::var(VARIABLE).unwrap_or_else(|_| "cpu".into())
}

/// The device, opened anew, as each part of a server opens its own.
pub fn open() -> AnyDevice {
    let name = named();
    let opened = name.parse::<Choice>().and_then(|choice| choice.open_any());
    opened.unwrap_or_else(|error| panic!("{VARIABLE}={name}: {error}"))
}

/// Its name in metrics.
pub fn name() -> String {
    let name = named();
    if name.contains(':') { name } else { format!("{name}:0") }
}

/// The type that models are served in there where nobody asks for another; `TRIFUSE_SOAK_DTYPE` does.
pub fn dtype(device: &AnyDevice) -> DType {
    match std::env::var("TRIFUSE_SOAK_DTYPE") {
        Ok(name) => {
            DType::ALL.into_iter().find(|dtype| dtype.name() == name).unwrap_or_else(|| panic!("TRIFUSE_SOAK_DTYPE: expected f16, bf16 or f32, found {name:?}"))
        }
        Err(_) => device.hints().dtype.unwrap_or(DType::F32),
    }
}

/// Adapters that encoders keep memory free for. A GPU chooses how it adds their parts by how many have room, and the choices sum in different orders: a vector
/// has the bits that it has alone as long as the room is there from the start. The processor has one order, so that there the room may grow.
pub fn reserve(device: &AnyDevice) -> u32 {
    if device.backend() == "cpu" { 0 } else { ROOM }
}

/// More than the adapters of any test, and more than the GPU's rules count apart.
const ROOM: u32 = 96;
