//! Claims: what was measured for them, what the rule says of it, and the two sentences.
//!
//! # The rule
//!
//! Everything rests on the interval of what was measured: the median over the rounds by bootstrap, with 95 % confidence. Below three rounds there is no verdict.
//!
//! * **A ratio** (the paper: one system is so many times better than another). The interval lies above 1: it *agrees*; in size if the median is within a quarter of the
//!   paper's number, else it is larger or smaller. It contains 1: *noise decides nothing*. It lies below 1: *the other way*.
//! * **A level** (the paper: a system keeps so many percent). The median is within a tenth of the paper's number: *about the same*. Else the whole interval lies on the
//!   better side of it or on the worse one, or noise decides nothing.

use super::{Claim, Figure, Ours, Term, Value};
use crate::paper::series::{self, Rounds};
use crate::report::text;
use crate::result::{Experiment, Ratio, Results};
use crate::statistics;

/// A ratio is of the paper's size within this factor.
pub const SIZE: f64 = 1.25;
/// A level is about the same within this factor.
pub const LEVEL: f64 = 1.1;

/// The rule, for a reader.
pub const RULE: &str = "A ratio agrees if its interval lies above 1: in size if its median is within a quarter of the paper's number, else it is larger or smaller. \
     A level is about the same if its median is within a tenth of the paper's number, else it is better or worse if its whole interval lies on that side. \
     Intervals are those of the median over the rounds (bootstrap, 95 %). Otherwise noise decides nothing, and below three rounds nothing is decided at all.";

/// What the rule says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// A ratio of the paper's size.
    Size,
    /// A larger one.
    Larger,
    /// A smaller one that is above 1.
    Smaller,
    /// Above 1, where the paper has no number.
    Direction,
    /// A level as the paper's.
    Same,
    /// A better one.
    Better,
    /// A worse one.
    Worse,
    /// The interval does not say.
    Open,
    /// A ratio below 1.
    Opposed,
    /// Fewer than three rounds.
    TooFew,
    /// There are no raw rows for it.
    Missing,
}

impl Verdict {
    /// In three words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Verdict::Size => "agrees in size",
            Verdict::Larger => "agrees, even larger",
            Verdict::Smaller => "agrees, but smaller",
            Verdict::Direction => "agrees in direction",
            Verdict::Same => "about the same",
            Verdict::Better => "better than theirs",
            Verdict::Worse => "worse than theirs",
            Verdict::Open => "noise decides nothing",
            Verdict::Opposed => "the other way",
            Verdict::TooFew => "too few rounds",
            Verdict::Missing => "was not measured",
        }
    }

    /// Whether it agrees; `None` where nothing was decided for want of measurements.
    #[must_use]
    pub fn agrees(self) -> Option<bool> {
        match self {
            Verdict::Size | Verdict::Larger | Verdict::Smaller | Verdict::Direction | Verdict::Same | Verdict::Better => {
                Some(true)
            }
            Verdict::Worse | Verdict::Open | Verdict::Opposed => Some(false),
            Verdict::TooFew | Verdict::Missing => None,
        }
    }
}

/// A claim with what was measured for it.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The claim.
    pub claim: &'static Claim,
    /// What was measured.
    pub ours: Option<Ratio>,
    /// What the rule says.
    pub verdict: Verdict,
}

/// All claims of a figure.
#[must_use]
pub fn all(results: &Results, figure: &'static Figure) -> Vec<Judged> {
    let judged = |claim: &'static Claim| {
        let ours = measured(results, figure, claim.ours);
        Judged { claim, verdict: verdict(claim, ours.as_ref()), ours }
    };
    figure.claims.iter().map(judged).collect()
}

fn verdict(claim: &Claim, ours: Option<&Ratio>) -> Verdict {
    let Some(ours) = ours else { return Verdict::Missing };
    if ours.rounds.len() < statistics::FEWEST_ROUNDS {
        return Verdict::TooFew;
    }
    match (claim.ours, claim.papers) {
        (Ours::Times(..), papers) => of_ratio(ours, papers),
        (Ours::Level(term), Some(papers)) => of_level(ours, papers, term.value.less_is_better()),
        (Ours::Percent(..), Some(papers)) => of_level(ours, papers, false),
        // The tests let no such claim be.
        (Ours::Level(_) | Ours::Percent(..), None) => Verdict::Open,
    }
}

fn of_ratio(ours: &Ratio, papers: Option<f64>) -> Verdict {
    match papers {
        _ if ours.high < 1.0 => Verdict::Opposed,
        _ if ours.low <= 1.0 => Verdict::Open,
        None => Verdict::Direction,
        Some(papers) if ours.median > papers * SIZE => Verdict::Larger,
        Some(papers) if ours.median < papers / SIZE => Verdict::Smaller,
        Some(_) => Verdict::Size,
    }
}

fn of_level(ours: &Ratio, papers: f64, less_is_better: bool) -> Verdict {
    if (papers / LEVEL..=papers * LEVEL).contains(&ours.median) {
        return Verdict::Same;
    }
    match (ours.low > papers, ours.high < papers) {
        (true, _) if less_is_better => Verdict::Worse,
        (true, _) => Verdict::Better,
        (_, true) if less_is_better => Verdict::Better,
        (_, true) => Verdict::Worse,
        _ => Verdict::Open,
    }
}

/// What was measured for a claim; `None` without raw rows for it.
#[must_use]
pub fn measured(results: &Results, figure: &Figure, ours: Ours) -> Option<Ratio> {
    let (first, second, percent) = match ours {
        Ours::Level(term) => return series::middle(&find(results, figure, term)?.1),
        Ours::Times(first, second) => (first, second, false),
        Ours::Percent(first, second) => (first, second, true),
    };
    let ((here, one), (there, other)) = (find(results, figure, first)?, find(results, figure, second)?);
    let less_is_better = first.value.less_is_better();
    let ratio = if std::ptr::eq(here, there) {
        // The same rounds: round by round.
        let numbers: Vec<u32> =
            one.keys().chain(other.keys()).copied().collect::<std::collections::BTreeSet<_>>().into_iter().collect();
        let of = |rounds: &Rounds| numbers.iter().map(|number| rounds.get(number).copied()).collect::<Vec<_>>();
        statistics::ratio(&of(&one), &of(&other), less_is_better)?
    } else {
        let (one, other): (Vec<f64>, Vec<f64>) = (one.into_values().collect(), other.into_values().collect());
        let count = one.len().min(other.len());
        let ratio =
            if less_is_better { statistics::unpaired_ratio(&other, &one) } else { statistics::unpaired_ratio(&one, &other) }?;
        // As many rounds as the side with fewer has: what the verdict asks for.
        Ratio { rounds: vec![ratio.median; count], ..ratio }
    };
    let scale = if percent { 100.0 } else { 1.0 };
    let rounds = ratio.rounds.iter().map(|ratio| ratio * scale).collect();
    Some(Ratio { median: ratio.median * scale, low: ratio.low * scale, high: ratio.high * scale, rounds, ..ratio })
}

/// The experiment of a term, and its number in each round.
fn find<'a>(results: &'a Results, figure: &Figure, term: Term) -> Option<(&'a Experiment, Rounds)> {
    let at = |experiment: &&Experiment| (series::x(experiment) - term.x).abs() < 1e-6;
    series::experiments(results, figure, term.panel).into_iter().filter(at).find_map(|experiment| {
        let target = experiment.targets.iter().find(|target| series::label(experiment, target) == term.series)?;
        let rounds = series::rounds(experiment, target, term.value);
        (!rounds.is_empty()).then_some((experiment, rounds))
    })
}

/// A number of a claim: `1.58×`, `85.0 %`, `1.40 s`.
#[must_use]
pub fn number(ours: Ours, number: f64) -> String {
    match ours {
        Ours::Times(..) => format!("{}×", text::digits(number)),
        Ours::Percent(..) => percent(number),
        Ours::Level(Term { value, .. }) if value.unit() == "%" => percent(number),
        Ours::Level(Term { value, .. }) => quantity(value, number),
    }
}

fn percent(number: f64) -> String {
    format!("{}\u{a0}%", text::digits(number))
}

fn quantity(value: Value, number: f64) -> String {
    text::quantity(number, value.unit())
}

/// The paper's number of a claim.
#[must_use]
pub fn papers(claim: &Claim) -> String {
    claim.papers.map_or_else(|| "no number".into(), |papers| number(claim.ours, papers))
}

/// What was measured for a claim, with its interval.
#[must_use]
pub fn ours(judged: &Judged) -> String {
    let show = |value| number(judged.claim.ours, value);
    judged
        .ours
        .as_ref()
        .map_or_else(|| "–".into(), |ours| format!("{} ({}–{})", show(ours.median), show(ours.low), show(ours.high)))
}

/// What agrees, and what does not and why: two sentences.
#[must_use]
pub fn sentences(judged: &[Judged]) -> [String; 2] {
    let list = |wanted: Option<bool>, reason: bool| {
        let lines = judged.iter().filter(|judged| judged.verdict.agrees() == wanted).map(|judged| sentence(judged, reason));
        lines.collect::<Vec<_>>().join("; ")
    };
    let undecided = judged.iter().filter(|judged| judged.verdict.agrees().is_none()).count();
    let all = judged.len();
    let or = |list: String, none: &str| if list.is_empty() { none.to_string() } else { list };
    let left = match undecided {
        0 => String::new(),
        count => format!(" ({count} of {all} were not decided: too few rounds, or not measured)"),
    };
    let nothing = if undecided == all { "nothing was decided" } else { "nothing" };
    [
        format!("What agrees: {}{left}.", or(list(Some(true), false), nothing)),
        format!("What does not, and why: {}.", or(list(Some(false), true), nothing)),
    ]
}

fn sentence(judged: &Judged, reason: bool) -> String {
    let claim = judged.claim;
    // Noise needs no reason of ours.
    let why = if reason && judged.verdict != Verdict::Open { format!(", because {}", claim.why) } else { String::new() };
    let papers = claim.papers.map_or_else(String::new, |papers| format!(" {}", number(claim.ours, papers)));
    format!(
        "{}: here {}, {}{papers} ({}), {}{why}",
        claim.what,
        ours(judged),
        claim.system,
        claim.section,
        judged.verdict.words()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::term;

    fn ratio(low: f64, median: f64, high: f64, rounds: usize) -> Ratio {
        Ratio { median, low, high, confidence: 0.95, rounds: vec![median; rounds] }
    }

    fn claim(ours: Ours, papers: Option<f64>) -> Claim {
        Claim { what: "w", system: "S", section: "§1", papers, ours, why: "y" }
    }

    fn times(papers: Option<f64>) -> Claim {
        let term = term("p", Value::Rate, "s", 1.0);
        claim(Ours::Times(term, term), papers)
    }

    #[test]
    fn ratios_are_judged_by_where_their_interval_lies() {
        for (low, median, high, papers, wanted) in [
            (1.4, 1.5, 1.6, Some(1.58), Verdict::Size),
            (1.9, 2.0, 2.1, Some(1.58), Verdict::Larger),
            (1.1, 1.2, 1.3, Some(1.58), Verdict::Smaller),
            (1.1, 1.2, 1.3, None, Verdict::Direction),
            (0.9, 1.5, 1.6, Some(1.58), Verdict::Open),
            (1.0, 1.5, 1.6, None, Verdict::Open),
            (0.7, 0.8, 0.9, Some(1.58), Verdict::Opposed),
        ] {
            assert_eq!(verdict(&times(papers), Some(&ratio(low, median, high, 5))), wanted, "{low} {median} {high} {papers:?}");
        }
        assert_eq!(verdict(&times(Some(2.0)), Some(&ratio(1.9, 2.0, 2.1, 2))), Verdict::TooFew);
        assert_eq!(verdict(&times(Some(2.0)), None), Verdict::Missing);
    }

    #[test]
    fn levels_are_judged_by_the_side_on_which_they_lie() {
        let level = |value| claim(Ours::Level(term("p", value, "s", 1.0)), Some(80.0));
        for (low, median, high, more, less) in [
            (70.0, 82.0, 95.0, Verdict::Same, Verdict::Same),
            (85.0, 92.0, 95.0, Verdict::Better, Verdict::Worse),
            (50.0, 60.0, 75.0, Verdict::Worse, Verdict::Better),
            (50.0, 60.0, 85.0, Verdict::Open, Verdict::Open),
        ] {
            let ours = ratio(low, median, high, 5);
            assert_eq!(verdict(&level(Value::Kept), Some(&ours)), more, "{median}");
            assert_eq!(verdict(&level(Value::Mean), Some(&ours)), less, "{median}");
        }
    }

    #[test]
    fn each_verdict_has_three_words() {
        use Verdict::{Better, Direction, Larger, Missing, Open, Opposed, Same, Size, Smaller, TooFew, Worse};
        for verdict in [Better, Direction, Larger, Missing, Open, Opposed, Same, Size, Smaller, TooFew, Worse] {
            assert_eq!(verdict.words().split(' ').count(), 3, "{verdict:?}");
        }
    }

    #[test]
    fn two_sentences_whatever_was_measured() {
        let leaked: &'static Claim = Box::leak(Box::new(times(Some(1.58))));
        let judged = |verdict, ours: Option<Ratio>| Judged { claim: leaked, ours, verdict };
        let agreed = judged(Verdict::Size, Some(ratio(1.4, 1.5, 1.6, 5)));
        let opposed = judged(Verdict::Opposed, Some(ratio(0.4, 0.5, 0.6, 5)));
        let [one, two] = sentences(&[agreed.clone(), opposed]);
        assert_eq!(one, "What agrees: w: here 1.50× (1.40×–1.60×), S 1.58× (§1), agrees in size.");
        assert_eq!(two, "What does not, and why: w: here 0.500× (0.400×–0.600×), S 1.58× (§1), the other way, because y.");
        let open = judged(Verdict::Open, Some(ratio(0.9, 1.5, 1.6, 5)));
        assert!(sentences(&[open])[1].ends_with("noise decides nothing."));
        let [one, two] = sentences(&[judged(Verdict::Missing, None)]);
        assert!(
            one.starts_with("What agrees: nothing was decided (1 of 1") && two.ends_with("why: nothing was decided."),
            "{one} {two}"
        );
        assert_eq!(sentences(&[agreed])[1], "What does not, and why: nothing.");
    }
}
