//! A port: taken at the start, and opened once there is somebody to answer.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Runtime;
use trifuse::{Error, Result};

/// Connections that the system holds before they are accepted.
const BACKLOG: u32 = 1024;

/// A port that is taken, and refuses connections.
#[derive(Debug)]
pub struct Port {
    socket: TcpSocket,
    place: String,
}

impl Port {
    /// Takes the port of an address.
    ///
    /// # Errors
    /// An address that cannot be had.
    pub fn take(addr: SocketAddr) -> Result<Self> {
        let place = addr.to_string();
        let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
        let socket = socket.map_err(Error::io(&place, "open"))?;
        socket.set_reuseaddr(true).and_then(|()| socket.bind(addr)).map_err(Error::io(&place, "listen on"))?;
        Ok(Self { socket, place })
    }

    /// Opens it, and tells where it is.
    ///
    /// # Errors
    /// A system that refuses.
    pub fn open(self, runtime: &Runtime) -> Result<(TcpListener, SocketAddr)> {
        let Self { socket, place } = self;
        let listening = {
            let _inside = runtime.enter();
            socket.listen(BACKLOG)
        };
        let listener = listening.map_err(Error::io(&place, "listen on"))?;
        let addr = listener.local_addr().map_err(Error::io(&place, "listen on"))?;
        Ok((listener, addr))
    }
}
