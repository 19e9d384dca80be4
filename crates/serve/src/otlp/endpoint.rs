//! Where a collector is.

use std::fmt;
use std::str::FromStr;

use trifuse::Error;

/// The port of collectors that listen over HTTP.
const PORT: u16 = 4318;
/// Where a collector takes traces, below its address.
const TRACES: &str = "/v1/traces";

/// The address of a collector: `http://HOST[:PORT][/PATH]`, below which it takes traces at `/v1/traces`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The machine.
    pub(super) host: String,
    /// Its port.
    pub(super) port: u16,
    /// Where it takes traces.
    pub(super) path: String,
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let fault = || Error::invalid("the collector's address", "http://HOST[:PORT][/PATH], without a key or TLS", format_args!("{text:?}"));
        let rest = text.strip_prefix("http://").ok_or_else(fault)?;
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let (host, port) = match authority.strip_prefix('[') {
            Some(inner) => {
                let (host, behind) = inner.split_once(']').ok_or_else(fault)?;
                (host, if behind.is_empty() { None } else { Some(behind.strip_prefix(':').ok_or_else(fault)?) })
            }
            None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
        };
        let digits = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.map_or(Some(PORT), |port| port.parse().ok().filter(|_| digits(port))).ok_or_else(fault)?;
        let odd = |text: &str, more: &str| text.bytes().any(|byte| !byte.is_ascii_graphic() || more.as_bytes().contains(&byte));
        if host.is_empty() || odd(host, "@/?#[]") || odd(path, "?#") {
            return Err(fault());
        }
        Ok(Self { host: host.to_owned(), port, path: format!("{}{TRACES}", path.trim_end_matches('/')) })
    }
}

impl fmt::Display for Endpoint {
    /// The machine and its port, as a header of HTTP has them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_and_what_is_none_is_refused() {
        for (text, authority, path) in [
            ("http://localhost", "localhost:4318", "/v1/traces"),
            ("http://127.0.0.1:9/", "127.0.0.1:9", "/v1/traces"),
            ("http://[::1]:80/otel/", "[::1]:80", "/otel/v1/traces"),
            ("http://[::1]", "[::1]:4318", "/v1/traces"),
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!((endpoint.to_string().as_str(), endpoint.path.as_str()), (authority, path));
        }
        for bad in [
            "",
            "localhost",
            "https://localhost",
            "http://",
            "http://a:",
            "http://a:+1",
            "http://a:99999",
            "http://me@a",
            "http://a/?b",
            "http://a b",
            "http://[::1",
        ] {
            assert!(bad.parse::<Endpoint>().is_err(), "{bad}");
        }
    }
}
