//! Mechanisms that an experiment leaves out, as text: `rescue,write-runs,batch=1`.

use crate::error::ConfigError;
use farshore_core::ablated::Ablated;
use farshore_core::limits::BATCH_PAGES_ABLATED_MAX;
use std::fmt;
use std::str::FromStr;

/// A switch: its name, and the field that it sets.
type Switch = (&'static str, fn(&mut Ablated) -> &mut bool);

/// All switches, in the order in which lists of them are written. `batch=N` is the last of a list, and no switch.
const SWITCHES: &[Switch] = &[
    ("pipeline", |it| &mut it.pipeline),
    ("caches", |it| &mut it.caches),
    ("rescue", |it| &mut it.rescue),
    ("delegation", |it| &mut it.delegation),
    ("write-runs", |it| &mut it.write_runs),
    ("partitions", |it| &mut it.partitions),
    ("prefetch", |it| &mut it.prefetch),
    ("headroom", |it| &mut it.headroom),
    ("migration", |it| &mut it.migration),
];

/// What `--ablate` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ablate(pub Ablated);

impl Ablate {
    /// What may be in a list, for messages.
    pub fn names() -> String {
        let names: Vec<&str> = SWITCHES.iter().map(|(name, _)| *name).collect();
        format!("{} and batch=N (1 to {BATCH_PAGES_ABLATED_MAX})", names.join(", "))
    }
}

impl fmt::Display for Ablate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut copy = self.0;
        let on = SWITCHES.iter().filter(|(_, field)| *field(&mut copy)).map(|(name, _)| (*name).to_owned());
        let mut words: Vec<String> = on.collect();
        words.extend(self.0.batch.map(|pages| format!("batch={pages}")));
        f.pad(&words.join(","))
    }
}

impl FromStr for Ablate {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Ablate, ConfigError> {
        let wrong = |word: &str, why: &str| {
            Err(ConfigError::value("--ablate", word, format!("{why}; what can be left out: {}", Ablate::names())))
        };
        let mut ablated = Ablated::default();
        for word in text.split(',') {
            if let Some(number) = word.strip_prefix("batch=") {
                match number.parse::<u32>().ok().filter(|number| (1..=BATCH_PAGES_ABLATED_MAX as u32).contains(number)) {
                    Some(number) if ablated.batch.is_none() => ablated.batch = Some(number),
                    Some(_) => return wrong(word, "batch is given twice"),
                    None => return wrong(word, "that is no such number of pages"),
                }
                continue;
            }
            let Some((_, field)) = SWITCHES.iter().find(|(name, _)| *name == word) else {
                return wrong(word, "there is no such thing");
            };
            if core::mem::replace(field(&mut ablated), true) {
                return wrong(word, "it is given twice");
            }
        }
        Ok(Ablate(ablated))
    }
}

impl serde::Serialize for Ablate {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Ablate {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(from)?;
        // The form of nothing left out, in the options that the library reads. Who writes a list means something by it.
        if text.is_empty() { Ok(Ablate::default()) } else { text.parse().map_err(serde::de::Error::custom) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written() {
        for (text, canonical) in [
            ("rescue", "rescue"),
            ("batch=1", "batch=1"),
            ("batch=512,write-runs,pipeline", "pipeline,write-runs,batch=512"),
            (
                "migration,headroom,prefetch,partitions,write-runs,delegation,rescue,caches,pipeline",
                "pipeline,caches,rescue,delegation,write-runs,partitions,prefetch,headroom,migration",
            ),
        ] {
            let read: Ablate = text.parse().unwrap();
            assert_eq!(read.to_string(), canonical);
            assert_eq!(canonical.parse::<Ablate>(), Ok(read));
            assert_eq!(serde_json::from_str::<Ablate>(&serde_json::to_string(&read).unwrap()).unwrap(), read);
        }
        assert_eq!(serde_json::from_str::<Ablate>("\"\"").unwrap(), Ablate::default());
        assert_eq!("caches".parse::<Ablate>().unwrap().0, Ablated { caches: true, ..Ablated::default() });
        assert_eq!("batch=3".parse::<Ablate>().unwrap().0, Ablated { batch: Some(3), ..Ablated::default() });
    }

    #[test]
    fn each_switch_sets_a_field_of_its_own() {
        for (name, _) in SWITCHES {
            let read: Ablate = name.parse().unwrap();
            assert_eq!(read.to_string(), *name);
        }
    }

    #[test]
    fn what_is_not_known_is_refused_with_all_that_is() {
        for bad in [
            "",
            "rescues",
            "rescue,",
            ",",
            " rescue",
            "batch",
            "batch=0",
            "batch=513",
            "batch=-1",
            "batch=",
            "batch=1,batch=2",
            "caches,caches",
            "none",
        ] {
            let why = bad.parse::<Ablate>().unwrap_err().to_string();
            for part in ["--ablate", "pipeline", "write-runs", "batch=N (1 to 512)"] {
                assert!(why.contains(part) && !why.contains('\n'), "{bad:?}: {why}");
            }
        }
    }
}
