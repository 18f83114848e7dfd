//! Socket addresses as the kernel has them.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Bytes of the longest one, an IPv6 address.
pub(crate) const NAME_BYTES: usize = size_of::<libc::sockaddr_in6>();

/// `sockaddr_in` or `sockaddr_in6`. All zero: none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(crate) struct Name([u8; NAME_BYTES]);

impl Default for Name {
    fn default() -> Name {
        Name([0; NAME_BYTES])
    }
}

impl Name {
    pub(crate) fn of(address: SocketAddr) -> Name {
        let mut name = Name::default();
        let mut put = |at: usize, bytes: &[u8]| name.0[at..at + bytes.len()].copy_from_slice(bytes);
        put(2, &address.port().to_be_bytes());
        match address {
            SocketAddr::V4(v4) => {
                put(0, &(libc::AF_INET as u16).to_ne_bytes());
                put(4, &v4.ip().octets());
            }
            SocketAddr::V6(v6) => {
                put(0, &(libc::AF_INET6 as u16).to_ne_bytes());
                put(4, &v6.flowinfo().to_ne_bytes());
                put(8, &v6.ip().octets());
                put(24, &v6.scope_id().to_ne_bytes());
            }
        }
        name
    }

    /// The address in `bytes`, as the kernel has left it. `None`: of another family, or cut.
    pub(crate) fn read(bytes: &[u8]) -> Option<SocketAddr> {
        let port = || Some(u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?));
        match i32::from(u16::from_ne_bytes(*bytes.first_chunk()?)) {
            libc::AF_INET => {
                let ip: [u8; 4] = *bytes.get(4..)?.first_chunk()?;
                Some(SocketAddrV4::new(Ipv4Addr::from(ip), port()?).into())
            }
            libc::AF_INET6 => {
                let ip: [u8; 16] = *bytes.get(8..)?.first_chunk()?;
                let flow = u32::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
                let scope = u32::from_ne_bytes(*bytes.get(24..)?.first_chunk()?);
                Some(SocketAddrV6::new(Ipv6Addr::from(ip), port()?, flow, scope).into())
            }
            _ => None,
        }
    }

    pub(crate) fn get(&self) -> Option<SocketAddr> {
        Name::read(&self.0)
    }

    pub(crate) fn family(&self) -> i32 {
        i32::from(u16::from_ne_bytes([self.0[0], self.0[1]]))
    }

    /// Bytes that count: 0 for none.
    pub(crate) fn bytes(&self) -> u32 {
        match self.family() {
            libc::AF_INET => size_of::<libc::sockaddr_in>() as u32,
            libc::AF_INET6 => NAME_BYTES as u32,
            _ => 0,
        }
    }

    pub(crate) fn as_ptr(&self) -> *const libc::sockaddr {
        self.0.as_ptr().cast()
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        self.0.as_mut_ptr().cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_were() {
        let v6 = SocketAddrV6::new("fe80::1:2".parse().unwrap(), 65535, 7, 3).into();
        for address in ["127.0.0.1:80".parse().unwrap(), "[::1]:1".parse().unwrap(), v6] {
            assert_eq!(Name::of(address).get(), Some(address));
        }
        assert_eq!(Name::default().get(), None);
        assert_eq!(Name::default().bytes(), 0);
    }

    #[test]
    fn what_is_cut_is_none() {
        for address in ["127.0.0.1:80", "[::1]:1"] {
            let name = Name::of(address.parse().unwrap());
            let least = if name.family() == libc::AF_INET { 8 } else { NAME_BYTES };
            for bytes in 0..NAME_BYTES {
                assert_eq!(Name::read(&name.0[..bytes]).is_some(), bytes >= least, "{address}, {bytes} bytes");
            }
        }
    }
}
