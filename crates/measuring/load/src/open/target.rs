//! Where a server is. A generator of load that is let loose on somebody else's machine is an attack, so machines other than
//! this one have to be asked for.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::str::FromStr;

/// How messages travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// Each is a datagram.
    Udp,
    /// They follow one another in a connection.
    Tcp,
}

/// A server's address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// How it is talked to.
    pub transport: Transport,
    /// As it was written, with its port.
    address: String,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("invalid server {text:?}: write udp:ADDRESS:PORT or tcp:ADDRESS:PORT, such as udp:127.0.0.1:7000");
        let (transport, address) = text.split_once(':').ok_or_else(wrong)?;
        let transport = match transport {
            "udp" => Transport::Udp,
            "tcp" => Transport::Tcp,
            _ => return Err(wrong()),
        };
        let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
        if host.is_empty() || port.parse::<u16>().ok().is_none_or(|port| port == 0) {
            return Err(wrong());
        }
        Ok(Target { transport, address: address.into() })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = match self.transport {
            Transport::Udp => "udp",
            Transport::Tcp => "tcp",
        };
        write!(f, "{transport}:{}", self.address)
    }
}

impl Target {
    /// The address to use.
    ///
    /// # Errors
    /// It is not one of this machine, and `remote` ones were not asked for; or the name is not known.
    pub fn resolve(&self, remote: bool) -> Result<SocketAddr, String> {
        let refused = |why: &str| {
            format!(
                "{self} {why}: load is sent to this machine alone; give --remote if the machine is yours to load, or an address of this one"
            )
        };
        let written: Option<SocketAddr> = self.address.parse().ok();
        // Other names are not even asked for: that alone would leave this machine.
        let is_name = written.is_none() && !self.address.starts_with("localhost:");
        if is_name && !remote {
            return Err(refused("is a name"));
        }
        let address = match written {
            Some(address) => address,
            None => self.look_up()?,
        };
        let ip = address.ip();
        if ip.is_unspecified() || ip.is_multicast() || ip == IpAddr::from([255; 4]) {
            return Err(format!("{self} is not the address of one machine: write 127.0.0.1 for this one"));
        }
        if !remote && !is_local(ip) {
            return Err(refused("is not this machine"));
        }
        Ok(address)
    }

    fn look_up(&self) -> Result<SocketAddr, String> {
        let mut found = self.address.to_socket_addrs().map_err(|error| format!("{self}: {error}"))?;
        found.next().ok_or_else(|| format!("{self}: the name has no address"))
    }

    /// What to do about an error of a socket.
    #[must_use]
    pub fn told(&self, doing: &str, error: &io::Error) -> String {
        let hint = match error.kind() {
            ErrorKind::ConnectionRefused => ": nobody listens there; start the server first, or correct the address",
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof => ": has the server ended?",
            ErrorKind::AddrNotAvailable => ": no ports are left; give less --connections",
            ErrorKind::TimedOut => ": does a firewall drop it?",
            _ if error.raw_os_error() == Some(24) => ": give less --connections, or raise the limit (ulimit -n)",
            _ => "",
        };
        format!("cannot {doing} {self}: {error}{hint}")
    }
}

/// Whether it is an address of this machine: only those can be bound.
fn is_local(ip: IpAddr) -> bool {
    ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(text: &str, remote: bool) -> Result<SocketAddr, String> {
        text.parse::<Target>().and_then(|target| target.resolve(remote))
    }

    #[test]
    fn only_this_machine_unless_another_was_asked_for() {
        assert_eq!(resolve("udp:127.0.0.1:7000", false), Ok(SocketAddr::from(([127, 0, 0, 1], 7000))));
        assert!(resolve("tcp:[::1]:7000", false).is_ok() && resolve("tcp:127.8.9.1:1", false).is_ok());
        assert!(resolve("tcp:localhost:7000", false).is_ok_and(|address| address.ip().is_loopback()));
        // An address for documentation, which nobody has, and names that nobody has.
        for text in ["udp:192.0.2.1:7000", "tcp:[2001:db8::1]:7000", "tcp:server.invalid:7000", "udp:localhost.invalid:7000"] {
            let said = resolve(text, false).unwrap_err();
            assert!(said.contains("--remote") && said.contains(text), "{said}");
        }
        assert_eq!(resolve("udp:192.0.2.1:7000", true), Ok(SocketAddr::from(([192, 0, 2, 1], 7000))));
        for text in ["udp:0.0.0.0:7000", "udp:224.0.0.1:7000", "udp:255.255.255.255:7000", "tcp:[::]:7000"] {
            assert!(resolve(text, true).unwrap_err().contains("127.0.0.1"), "{text}");
        }
    }

    #[test]
    fn a_target_has_a_transport_and_a_port() {
        for text in
            ["127.0.0.1:7000", "udp:127.0.0.1", "udp::7000", "tcp:127.0.0.1:0", "tcp:127.0.0.1:99999", "quic:127.0.0.1:1", ""]
        {
            assert!(text.parse::<Target>().unwrap_err().contains("udp:ADDRESS:PORT"), "{text}");
        }
        let text = "tcp:[::1]:11211";
        assert_eq!(text.parse::<Target>().map(|target| target.to_string()), Ok(text.into()));
    }
}
