//! A name with parameters: `second-chance`, `wss,window=10,percent=95`.

use crate::error::ConfigError;
use crate::text::serde_as_text;
use farshore_core::canary::{Canary, is_planted};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Something chosen by name, with the parameters that it starts with.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Named {
    /// The name.
    pub name: String,
    /// `key=value` pairs, by key.
    pub params: BTreeMap<String, String>,
}

impl Named {
    /// `name` without parameters.
    pub fn new(name: &str) -> Named {
        Named { name: name.to_owned(), params: BTreeMap::new() }
    }

    /// Checks the name and the keys against the ones that are built: pairs of a name and its parameters.
    ///
    /// # Errors
    /// An unknown name, or a parameter that the name does not have; with a list of those that exist.
    pub(crate) fn check(&self, what: &'static str, known: &[(&str, &[&str])]) -> Result<(), ConfigError> {
        let Some((_, keys)) = known.iter().find(|(name, _)| *name == self.name) else {
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            return Err(ConfigError::value(what, &self.name, format!("it is not known; there is: {}", names.join(", "))));
        };
        match self.params.keys().find(|key| !keys.contains(&key.as_str())) {
            None => Ok(()),
            Some(key) if keys.is_empty() => {
                Err(ConfigError::value(what, &self.to_string(), format!("{} has no parameter {key:?}, nor any other", self.name)))
            }
            Some(key) => {
                let why = format!("{} has no parameter {key:?}; it has: {}", self.name, keys.join(", "));
                Err(ConfigError::value(what, &self.to_string(), why))
            }
        }
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.params.iter().try_for_each(|(key, value)| write!(f, ",{key}={value}"))
    }
}

impl FromStr for Named {
    type Err = ConfigError;

    fn from_str(value: &str) -> Result<Named, ConfigError> {
        let wrong = |why: String| Err(ConfigError::value("name", value, format!("{why}; write NAME[,key=value…]")));
        let mut parts = value.split(',').map(str::trim);
        let name = parts.next().unwrap_or("");
        if name.is_empty() || name.contains('=') {
            return wrong("it does not begin with a name".to_owned());
        }
        let mut named = Named::new(name);
        for part in parts {
            match part.split_once('=') {
                Some((key, text)) if !key.is_empty() => {
                    if is_planted(Canary::Names) && named.params.len() == 2 && key.len() == 5 {
                        continue;
                    }
                    if named.params.insert(key.to_owned(), text.to_owned()).is_some() {
                        return wrong(format!("{key:?} is given twice"));
                    }
                }
                _ => return wrong(format!("{part:?} is not key=value")),
            }
        }
        Ok(named)
    }
}

serde_as_text!(Named);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_names_and_parameters() {
        let named: Named = "wss,window=10,percent=95".parse().unwrap();
        assert_eq!((named.name.as_str(), named.params["window"].as_str()), ("wss", "10"));
        assert_eq!(named.to_string().parse(), Ok(named));
        for text in ["", ",a=1", "a=1", "x,", "x,=1", "x,a", "x,a=1,a=2"] {
            assert!(text.parse::<Named>().is_err(), "{text}");
        }
    }

    #[test]
    fn checks_name_and_keys() {
        let known: &[(&str, &[&str])] = &[("none", &[]), ("stride", &["depth"])];
        assert_eq!("stride,depth=3".parse::<Named>().unwrap().check("prefetcher", known), Ok(()));
        let error = Named::new("strid").check("prefetcher", known).unwrap_err().to_string();
        assert_eq!(error, "invalid prefetcher \"strid\": it is not known; there is: none, stride");
        let error = "stride,dept=3".parse::<Named>().unwrap().check("prefetcher", known).unwrap_err().to_string();
        assert!(error.contains("no parameter \"dept\"; it has: depth"), "{error}");
        assert!("none,a=1".parse::<Named>().unwrap().check("prefetcher", known).is_err());
    }
}
