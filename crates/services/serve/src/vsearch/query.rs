//! `FT.SEARCH`: words to a search, as Redis' query engine has it for the nearest vectors.
//!
//! ```text
//! FT.SEARCH vectors "*=>[KNN 10 @vector $q AS d]" PARAMS 2 q BYTES DIALECT 2
//! ```
//!
//! The vector is a parameter, of little-endian numbers of four bytes. `NPROBE n` inside of the brackets says how many lists are read. What would change the
//! result and is not understood is refused: a filter in the place of `*`, another order, other options.

use std::borrow::Cow;

use super::resp::number;

/// The index, and the only one.
pub const INDEX: &[u8] = b"vectors";
/// Vectors that may be asked for.
pub const NEAREST_MAX: usize = 100;
/// Bytes of a name.
const NAME_MAX: usize = 64;
/// Vectors that are shown if nothing is said: as Redis does.
const LIMIT: usize = 10;

/// What is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Search<'a> {
    /// The vector's bytes.
    pub vector: &'a [u8],
    /// How many of the nearest.
    pub nearest: usize,
    /// How many lists are read, if it is said.
    pub probes: Option<usize>,
    /// Which of these are shown: so many are left out first, and then at most so many are shown.
    pub limit: (usize, usize),
    /// What is shown of each.
    pub shown: Shown<'a>,
}

/// What is shown of a vector.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Shown<'a> {
    /// Its name.
    Name,
    /// Its name, and no field.
    Nothing,
    /// Its name, and the distance, by this name.
    Distance(Cow<'a, [u8]>),
}

/// What is wrong with it.
pub type Wrong = &'static str;

/// Words that are taken one after the other.
struct Rest<'w, 'a>(&'w [&'a [u8]]);

impl<'w, 'a> Rest<'w, 'a> {
    fn next(&mut self) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self) -> Option<usize> {
        self.next().and_then(number)
    }

    fn many(&mut self, count: usize) -> Option<&'w [&'a [u8]]> {
        let (first, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(first)
    }
}

/// What stands between the brackets.
struct Knn<'a> {
    nearest: &'a [u8],
    field: &'a [u8],
    vector: &'a [u8],
    probes: Option<&'a [u8]>,
    name: Option<&'a [u8]>,
}

/// The search that the words after `FT.SEARCH` ask for.
///
/// # Errors
/// What is wrong.
pub fn parse<'a>(words: &[&'a [u8]]) -> Result<Search<'a>, Wrong> {
    let mut rest = Rest(words);
    if rest.next() != Some(INDEX) {
        return Err("no such index: it is called vectors");
    }
    let knn = knn(rest.next().ok_or("wrong number of arguments for FT.SEARCH")?)?;
    let name = match knn.name {
        Some(name) => Cow::Borrowed(name),
        None => Cow::Owned([b"__", knn.field, b"_score"].concat()),
    };
    let (mut params, mut limit, mut shown): (&[&[u8]], _, _) = (&[], (0, LIMIT), Shown::Distance(name.clone()));
    let mut seen = false;
    while let Some(option) = rest.next() {
        let is = |word: &str| option.eq_ignore_ascii_case(word.as_bytes());
        if is("PARAMS") {
            let count = rest.number().filter(|count| count.is_multiple_of(2));
            params =
                count.and_then(|count| rest.many(count)).ok_or("bad arguments for PARAMS: want a count, and so many words")?;
            if seen {
                return Err("PARAMS: it is there twice");
            }
            seen = true;
            let mut names = params.iter().step_by(2).enumerate();
            if names.any(|(n, name)| params.iter().step_by(2).take(n).any(|other| other == name)) {
                return Err("PARAMS: a name is there twice");
            }
        } else if is("RETURN") {
            let fields = rest
                .number()
                .and_then(|count| rest.many(count))
                .ok_or("bad arguments for RETURN: want a count, and so many words")?;
            if fields.iter().any(|word| word.eq_ignore_ascii_case(b"AS")) {
                return Err("RETURN: AS is not understood: name the distance in the query");
            }
            if !fields.contains(&&*name) {
                shown = if fields.is_empty() { Shown::Name } else { Shown::Nothing };
            }
        } else if is("NOCONTENT") {
            shown = Shown::Name;
        } else if is("LIMIT") {
            let both = (rest.number(), rest.number());
            limit = (both.0.ok_or("bad arguments for LIMIT")?, both.1.ok_or("bad arguments for LIMIT")?);
        } else if is("SORTBY") {
            if rest.next() != Some(&*name) {
                return Err("SORTBY: they are in the order of their distance, and of nothing else");
            }
            if rest.0.first().is_some_and(|word| word.eq_ignore_ascii_case(b"DESC")) {
                return Err("SORTBY: the nearest are first, and DESC is not understood");
            }
            if rest.0.first().is_some_and(|word| word.eq_ignore_ascii_case(b"ASC")) {
                rest.next();
            }
        } else if is("DIALECT") {
            rest.number().filter(|dialect| (2..=4).contains(dialect)).ok_or("DIALECT: want 2 to 4")?;
        } else if is("TIMEOUT") {
            rest.number().ok_or("bad arguments for TIMEOUT")?;
        } else if !is("VERBATIM") {
            return Err("unknown argument of FT.SEARCH");
        }
    }
    let parameter = |word: &'a [u8]| match word.strip_prefix(b"$") {
        Some(name) => params.chunks_exact(2).find(|pair| pair[0] == name).map(|pair| pair[1]),
        None => Some(word),
    };
    let value = |word: &'a [u8]| parameter(word).and_then(number).ok_or("KNN: want a number, or a parameter that is one");
    let nearest = value(knn.nearest)?;
    if !(1..=NEAREST_MAX).contains(&nearest) {
        return Err("KNN: want 1 to 100 vectors");
    }
    let vector = knn.vector.starts_with(b"$").then(|| parameter(knn.vector)).flatten();
    Ok(Search {
        vector: vector.ok_or("KNN: the vector must be a parameter, such as $q, that PARAMS has")?,
        nearest,
        probes: knn.probes.map(value).transpose()?,
        limit,
        shown,
    })
}

/// `*=>[KNN number @field $vector …]`
fn knn(text: &[u8]) -> Result<Knn<'_>, Wrong> {
    const FORM: Wrong = "the query must be of the form *=>[KNN number @field $vector AS name]: there are no filters";
    let text = text.trim_ascii();
    let text = text.strip_prefix(b"(*)").or_else(|| text.strip_prefix(b"*")).ok_or(FORM)?.trim_ascii();
    let text = text.strip_prefix(b"=>").ok_or(FORM)?.trim_ascii();
    let text = text.strip_prefix(b"[").and_then(|text| text.strip_suffix(b"]")).ok_or(FORM)?;
    let mut words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let mut next = || words.next();
    let is_knn = next().is_some_and(|word| word.eq_ignore_ascii_case(b"KNN"));
    let (nearest, field, vector) = (next().ok_or(FORM)?, next().ok_or(FORM)?, next().ok_or(FORM)?);
    let field = field.strip_prefix(b"@").filter(|field| is_knn && named(field)).ok_or(FORM)?;
    let mut knn = Knn { nearest, field, vector, probes: None, name: None };
    while let Some(word) = next() {
        let value = next().ok_or(FORM)?;
        if word.eq_ignore_ascii_case(b"AS") {
            knn.name = Some(value).filter(|name| named(name));
            knn.name.ok_or("AS: want a name")?;
        } else if word.eq_ignore_ascii_case(b"NPROBE") {
            knn.probes = Some(value);
        } else {
            return Err("KNN: it takes AS and NPROBE, and nothing else");
        }
    }
    Ok(knn)
}

fn named(name: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&name.len()) && name.iter().all(u8::is_ascii_graphic)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search<'a>(words: &[&'a str]) -> Result<Search<'a>, Wrong> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        parse(&words)
    }

    fn distance(name: &str) -> Shown<'_> {
        Shown::Distance(Cow::Borrowed(name.as_bytes()))
    }

    #[test]
    fn what_clients_send() {
        let plain = Search { vector: b"xyz", nearest: 10, probes: None, limit: (0, 10), shown: distance("d") };
        // As redis-py puts it together.
        let words = [
            "vectors",
            "*=>[KNN 10 @v $q AS d]",
            "RETURN",
            "2",
            "id",
            "d",
            "SORTBY",
            "d",
            "ASC",
            "DIALECT",
            "2",
            "LIMIT",
            "0",
            "10",
            "PARAMS",
            "2",
            "q",
            "xyz",
        ];
        assert_eq!(search(&words), Ok(plain.clone()));
        let unnamed = Search { shown: distance("__v_score"), ..plain.clone() };
        assert_eq!(search(&["vectors", "(*) => [ knn $k @v $q ]", "params", "4", "k", "10", "q", "xyz"]), Ok(unnamed));
        let probes = Search { probes: Some(7), nearest: 100, limit: (5, 20), ..plain.clone() };
        let words = [
            "vectors",
            "*=>[KNN 100 @v $q NPROBE $p AS d]",
            "PARAMS",
            "4",
            "p",
            "7",
            "q",
            "xyz",
            "LIMIT",
            "5",
            "20",
            "VERBATIM",
            "TIMEOUT",
            "0",
        ];
        assert_eq!(search(&words), Ok(probes));
        let shown = |more: &[&'static str]| search(&[&words[..8], more].concat()).map(|search| search.shown);
        assert_eq!(shown(&["NOCONTENT"]), Ok(Shown::Name));
        assert_eq!(shown(&["RETURN", "0"]), Ok(Shown::Name));
        assert_eq!(shown(&["RETURN", "1", "other"]), Ok(Shown::Nothing));
        assert_eq!(shown(&["SORTBY", "d"]), Ok(distance("d")));
    }

    #[test]
    fn what_is_refused() {
        for query in [
            "",
            "*",
            "*=>",
            "*=>[]",
            "*=>[KNN 10 @v $q",
            "*=>[KNN 10 v $q]",
            "*=>[KNN 10 @v]",
            "*=>[RANGE 10 @v $q]",
            "@year:[1 2]=>[KNN 10 @v $q]",
            "*=>[KNN 0 @v $q]",
            "*=>[KNN 101 @v $q]",
            "*=>[KNN x @v $q]",
            "*=>[KNN $none @v $q]",
            "*=>[KNN 10 @v $none]",
            "*=>[KNN 10 @v q]",
            "*=>[KNN 10 @v $q AS]",
            "*=>[KNN 10 @v $q EF 7]",
            "*=>[KNN 10 @v $q NPROBE x]",
            "*=>[KNN 10 @ $q]",
        ] {
            assert!(search(&["vectors", query, "PARAMS", "2", "q", "xyz"]).is_err(), "{query}");
        }
        let all = |more: &[&'static str]| {
            search(&[&["vectors", "*=>[KNN 10 @v $q AS d]", "PARAMS", "2", "q", "xyz"][..], more].concat())
        };
        assert!(all(&[]).is_ok());
        for more in [
            &["SORTBY"][..],
            &["SORTBY", "x"],
            &["SORTBY", "d", "DESC"],
            &["LIMIT", "0"],
            &["LIMIT", "-1", "5"],
            &["RETURN"],
            &["RETURN", "2", "d"],
            &["PARAMS", "1", "q"],
            &["PARAMS", "2", "other", "xyz"],
            &["PARAMS", "2", "p", "8"],
            &["PARAMS", "4", "q", "xyz", "q", "abc"],
            &["RETURN", "3", "d", "AS", "e"],
            &["DIALECT", "1"],
            &["FILTER", "x", "1", "2"],
            &["WITHSCORES"],
            &["TIMEOUT"],
        ] {
            assert!(all(more).is_err(), "{more:?}");
        }
        assert!(
            search(&[]).is_err()
                && search(&["vectors"]).is_err()
                && search(&["other", "*=>[KNN 10 @v $q]", "PARAMS", "2", "q", "x"]).is_err()
        );
    }
}
