//! Where a server is asked: the parts of its URL.

use std::net::{SocketAddr, ToSocketAddrs};

use trifuse::{Error, Result};

/// The port of HTTP.
const PORT: u16 = 80;

/// A server's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Host and port, as the header `host` has them.
    pub host: String,
    /// What stands before every route: nothing, or a path without a `/` at its end.
    pub prefix: String,
}

impl Address {
    /// Reads `http://HOST[:PORT][/PREFIX]`; a `/v1` at the end, as clients of OpenAI are given it, is left out.
    ///
    /// # Errors
    /// Another scheme, and above all https; a user, a query or a fragment; no host, or a port that is none.
    pub fn parse(url: &str) -> Result<Self> {
        let fault = |expected: &str| Error::invalid("URL", expected, format!("{url:?}"));
        if url.get(..8).is_some_and(|start| start.eq_ignore_ascii_case("https://")) {
            return Err(fault("http://HOST:PORT: TLS is a proxy's work, whose times would be measured too; ask the server behind it"));
        }
        let rest = match url.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some(_) => return Err(fault("http://HOST:PORT")),
            None => url,
        };
        let (host, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        if rest.contains(['?', '#', ' ']) || rest.chars().any(char::is_control) {
            return Err(fault("http://HOST:PORT, without a query, a fragment or a space"));
        }
        if host.contains('@') {
            return Err(fault("http://HOST:PORT without a user; --api-key-file takes a key"));
        }
        // The colons of an IPv6 address stand in brackets.
        let (name, port) = match host.rfind(':').filter(|at| !host[*at..].contains(']')) {
            Some(at) => (&host[..at], Some(&host[at + 1..])),
            None => (host, None),
        };
        let port = port.map_or(Ok(PORT), |port| port.parse().map_err(|_| fault("http://HOST:PORT with a port of 0 to 65535")))?;
        if name.is_empty() || name.contains(':') && !name.starts_with('[') {
            return Err(fault("http://HOST:PORT with a host, and an IPv6 address in brackets"));
        }
        let path = path.trim_end_matches('/');
        Ok(Self { host: format!("{name}:{port}"), prefix: path.strip_suffix("/v1").unwrap_or(path).to_owned() })
    }

    /// The addresses that the host's name stands for.
    ///
    /// # Errors
    /// A name that is not known.
    pub fn resolve(&self) -> Result<Vec<SocketAddr>> {
        let all: Vec<SocketAddr> = self.host.to_socket_addrs().map_err(Error::io(&self.host, "find the address of"))?.collect();
        if all.is_empty() { Err(Error::invalid("URL", "a host with an address", format!("{:?} with none", self.host))) } else { Ok(all) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_host_a_port_and_a_prefix() {
        for (url, host, prefix) in [
            ("http://127.0.0.1:8000", "127.0.0.1:8000", ""),
            ("HTTP://a.example/", "a.example:80", ""),
            ("localhost:8000", "localhost:8000", ""),
            ("http://[::1]:8000/v1", "[::1]:8000", ""),
            ("http://[::1]", "[::1]:80", ""),
            ("http://proxy:1/models/one/v1/", "proxy:1", "/models/one"),
            ("http://proxy:1/a", "proxy:1", "/a"),
        ] {
            assert_eq!(Address::parse(url).unwrap(), Address { host: host.into(), prefix: prefix.into() }, "{url}");
        }
    }

    #[test]
    fn what_is_no_address_is_told_with_what_to_do() {
        for (url, told) in [
            ("https://a:1", "behind it"),
            ("HTTPS://a", "behind it"),
            ("ftp://a", "http://HOST:PORT"),
            ("http://ann:key@a", "--api-key-file"),
            ("http://a?x=1", "query"),
            ("http://a:70000", "65535"),
            ("http://a:b", "65535"),
            ("http://", "with a host"),
            ("http://::1:80", "brackets"),
            ("", "with a host"),
        ] {
            let error = Address::parse(url).unwrap_err();
            assert!(error.to_string().contains(told) && error.exit_status() == 2, "{url}: {error}");
        }
    }
}
