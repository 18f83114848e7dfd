//! Short values of options: names with parameters, fault modes, files for the counters. Each reader gets the same text.

use super::{assert_one_line, reads_back, text};
use farshore_config::{FaultMode, Named, Options, POLICIES, PREFETCHERS, Size, StatsTarget, SwapSpec};
use std::collections::BTreeMap;

/// Reads the input as each of them.
pub fn run(input: &[u8]) {
    let text = text(input);
    let named = reads_back::<Named>(&text);
    let expected = named_of(&text);
    assert_eq!(named.as_ref().map(|n| (n.name.clone(), n.params.clone())), expected, "{text:?}");
    if let Some(named) = named {
        let usual = Options::new(Size::mib(64), SwapSpec::Dir("/x".into()));
        let policy = Options { policy: named.clone(), ..usual.clone() };
        let prefetch = Options { prefetch: named.clone(), ..usual };
        for (options, known) in [(policy, POLICIES), (prefetch, PREFETCHERS)] {
            let keys = known.iter().find(|(name, _)| *name == named.name).map(|(_, keys)| keys);
            let fine = keys.is_some_and(|keys| named.params.keys().all(|key| keys.contains(&key.as_str())));
            match options.validate() {
                Ok(()) => assert!(fine, "{text:?} is not known"),
                Err(error) => {
                    assert!(!fine, "{text:?} is refused: {error}");
                    assert_one_line(&error);
                }
            }
        }
    }
    assert_eq!(reads_back::<FaultMode>(&text).is_some(), matches!(&*text, "upcall" | "poll"));
    let stats = reads_back::<StatsTarget>(&text);
    assert_eq!(stats.is_some(), !text.is_empty());
    assert_eq!(stats == Some(StatsTarget::Stderr), text == "-");
}

/// `NAME[,key=value…]`, with room around the commas.
fn named_of(text: &str) -> Option<(String, BTreeMap<String, String>)> {
    let mut params = BTreeMap::new();
    let mut name = None;
    for part in text.split(',') {
        let part = part.trim();
        match (&name, part.find('=')) {
            (None, None) if !part.is_empty() => name = Some(part.to_owned()),
            (Some(_), Some(at)) if at > 0 => {
                if params.insert(part[..at].to_owned(), part[at + 1..].to_owned()).is_some() {
                    return None;
                }
            }
            _ => return None,
        }
    }
    Some((name?, params))
}
