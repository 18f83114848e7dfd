//! Who may ask.
//!
//! * **At a Unix socket**: the daemon's user and root, as the kernel says (`SO_PEERCRED`). The socket's file has mode 0600 besides.
//! * **At a port**: who has a token, in `Authorization: Bearer TOKEN`. A browser sends that header to no other site's order, and the answers allow no other site to read
//!   them, so a page of somebody else's cannot ask in the user's name.
//! * **At a port, the name of the host must be one that cannot be made to lead here**: an address, `localhost`, or the name that the daemon was told to listen at. A page
//!   whose own name is made to lead to this machine (DNS rebinding) is answered nothing.
//! * What changes something comes as `application/json`, which a form of another site cannot send.

use std::net::IpAddr;

use farshore_command::http::{Peer, Request};
use farshore_command::token::Tokens;

/// Decides who may ask.
#[derive(Debug)]
pub struct Guard {
    user: u32,
    tokens: Option<Tokens>,
    /// Names of this host that the user has given.
    names: Vec<String>,
}

impl Guard {
    /// A guard for what belongs to `user`.
    pub fn new(user: u32, tokens: Option<Tokens>, names: Vec<String>) -> Guard {
        Guard { user, tokens, names: names.into_iter().map(|name| name.to_ascii_lowercase()).collect() }
    }

    /// Whether a request is let in; else a status, and why.
    ///
    /// # Errors
    /// It is not. `is_open`: what it asks for has nothing of anybody's in it.
    pub fn admit(&self, request: &Request, is_open: bool) -> Result<(), (u16, String)> {
        match request.peer {
            Peer::User(Some(user)) if user == 0 || user == self.user => {}
            Peer::User(user) => {
                let who = user.map_or_else(|| "somebody whom the kernel does not name".into(), |user| format!("user {user}"));
                return Err((403, format!("{who} may not ask a daemon of user {}: ask as that user, or as root", self.user)));
            }
            Peer::Anybody => {
                let host = request.header("host").unwrap_or_default();
                if !self.is_ours(host) {
                    return Err((
                        421,
                        format!(
                            "Host: {host:?} is not a name of this daemon: use an address, localhost, or the name given with --listen"
                        ),
                    ));
                }
                if !is_open && !self.knows(request) {
                    return Err((
                        401,
                        "no token of this daemon: send 'Authorization: Bearer TOKEN' with a line of its --token-file".into(),
                    ));
                }
            }
        }
        let is_json =
            |kind: &str| kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"));
        if request.method == "POST" && !request.header("content-type").is_some_and(is_json) {
            let kind = request.header("content-type").unwrap_or_default();
            return Err((415, format!("Content-Type: {kind:?} is not served: send application/json")));
        }
        Ok(())
    }

    fn is_ours(&self, host: &str) -> bool {
        // `[::1]:9280`, `localhost:9280`, or without a port.
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split_once(']').filter(|(_, port)| port.is_empty() || port.starts_with(':')).map(|(name, _)| name),
            None => host.split(':').next(),
        };
        let name = name.unwrap_or_default().to_ascii_lowercase();
        name == "localhost" || name.parse::<IpAddr>().is_ok() || self.names.contains(&name)
    }

    fn knows(&self, request: &Request) -> bool {
        let given = request.header("authorization").and_then(|value| value.split_once(' '));
        let token = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, token)| token.trim());
        token.is_some_and(|token| {
            !token.contains('/') && self.tokens.as_ref().is_some_and(|tokens| tokens.admit(token.as_bytes()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn guard() -> Guard {
        Guard::new(1000, Some(Tokens::of(TOKEN).expect("it is one")), vec!["Box.example".into(), "127.0.0.1".into()])
    }

    fn request(peer: Peer, headers: &[(&str, &str)]) -> Request {
        let headers = headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        Request { method: "GET".into(), path: "/".into(), query: String::new(), headers, body: Vec::new(), peer }
    }

    fn status(request: &Request, is_open: bool) -> u16 {
        guard().admit(request, is_open).err().map_or(200, |(status, _)| status)
    }

    #[test]
    fn other_users_are_told_so() {
        for (user, wanted) in [(Some(1000), 200), (Some(0), 200), (Some(1001), 403), (None, 403)] {
            assert_eq!(status(&request(Peer::User(user), &[]), false), wanted, "{user:?}");
            assert_eq!(status(&request(Peer::User(user), &[]), true), wanted, "{user:?}");
        }
    }

    #[test]
    fn a_port_wants_a_token() {
        for (value, wanted) in [
            (format!("Bearer {TOKEN}"), 200),
            (format!("bearer  {TOKEN} "), 200),
            (format!("Bearer {TOKEN}/x"), 401),
            (format!("Basic {TOKEN}"), 401),
            (format!("Bearer {TOKEN}x"), 401),
            (TOKEN.into(), 401),
            ("Bearer".into(), 401),
        ] {
            let asked = request(Peer::Anybody, &[("host", "localhost"), ("authorization", &value)]);
            assert_eq!(status(&asked, false), wanted, "{value}");
        }
        assert_eq!(status(&request(Peer::Anybody, &[("host", "localhost")]), true), 200);
        assert_eq!(status(&request(Peer::Anybody, &[("host", "localhost")]), false), 401);
        let without = Guard::new(1000, None, Vec::new());
        let asked = request(Peer::Anybody, &[("host", "localhost"), ("authorization", "Bearer x")]);
        assert_eq!(without.admit(&asked, false).map_err(|(status, _)| status), Err(401));
    }

    #[test]
    fn a_name_that_was_made_to_lead_here_is_refused() {
        for (host, wanted) in [
            ("127.0.0.1:9280", 200),
            ("10.1.2.3", 200),
            ("[::1]:9280", 200),
            ("[::1]", 200),
            ("LOCALHOST:1", 200),
            ("box.example:9280", 200),
            ("evil.example:9280", 421),
            ("localhost.evil.example", 421),
            ("[::1]evil.example", 421),
            ("127.0.0.1.evil.example", 421),
            ("", 421),
        ] {
            let asked = request(Peer::Anybody, &[("host", host)]);
            assert_eq!(status(&asked, true), wanted, "{host}");
        }
        assert_eq!(status(&request(Peer::Anybody, &[]), true), 421);
    }

    #[test]
    fn what_changes_something_is_json() {
        for (kind, wanted) in
            [("application/json", 200), ("Application/JSON; charset=utf-8", 200), ("text/plain", 415), ("", 415)]
        {
            let asked = Request { method: "POST".into(), ..request(Peer::User(Some(0)), &[("content-type", kind)]) };
            assert_eq!(status(&asked, false), wanted, "{kind}");
        }
    }
}
