//! Claims: what was measured for them, what the rule says of it, and the two sentences.
//!
//! # The rule
//!
//! Everything rests on the interval of what was measured: the median over the rounds by bootstrap, with 95 % confidence. Below three rounds there is no verdict.
//!
//! * **A ratio** (the paper: one system is so many times better than another). The interval lies above 1: it *agrees*; in size if the whole of it is within a quarter of the
//!   paper's number, larger or smaller if the whole of it lies on that side of the number, else in direction. It contains 1: *noise decides nothing*. It lies below 1: *the other way*.
//! * **A level** (the paper: a system keeps so many percent). The whole interval is within a tenth of the paper's number: *about the same*. Else the whole of it lies on the
//!   better side of it or on the worse one, or noise decides nothing. A level of what the paper does better than is contradicted by a better one, too.
//! * **A good round without a number** (nothing was done, the rate never came back) is not left out in silence: nothing is decided then, and it is said.

use super::{Claim, Figure, Ours, Term, Value};
use crate::paper::series::{self, Rounds};
use crate::report::text;
use crate::result::{Experiment, Ratio, Results, TargetResult};
use crate::statistics;

/// A ratio is of the paper's size within this factor.
pub const SIZE: f64 = 1.25;
/// A level is about the same within this factor.
pub const LEVEL: f64 = 1.1;

/// The rule, for a reader.
pub const RULE: &str = "A ratio agrees if its interval lies above 1: in size if the whole interval is within a quarter of the paper's number, larger or smaller if the whole of it lies on that side of the number, else in direction. \
     A level is about the same if its whole interval is within a tenth of the paper's number, else it is better or worse if the whole of it lies on that side; a baseline that does better than the paper's contradicts the paper. \
     Intervals are those of the median over the rounds (bootstrap, 95 %). Otherwise noise decides nothing. Nothing is decided either below three rounds, or if a good round has no number: it did nothing, or never came back.";

/// What the rule says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// A ratio of the paper's size.
    Size,
    /// A larger one.
    Larger,
    /// A smaller one that is above 1.
    Smaller,
    /// Above 1, where the paper has no number or the interval is too wide for its size.
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
    fn agrees(self) -> Option<bool> {
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
    /// Good rounds without a number, for a reader: "farshore: 2 of 5 rounds".
    pub lost: Vec<String>,
}

impl Judged {
    /// Whether it agrees with the paper; `None` where nothing was decided for want of measurements.
    #[must_use]
    pub fn agrees(&self) -> Option<bool> {
        // A baseline that does better than the paper's.
        if self.claim.baseline && self.verdict == Verdict::Better { Some(false) } else { self.verdict.agrees() }
    }

    /// The verdict in three words.
    #[must_use]
    pub fn words(&self) -> &'static str {
        // That is no noise.
        if self.verdict == Verdict::Open && !self.lost.is_empty() { "nothing is decided" } else { self.verdict.words() }
    }
}

/// All claims of a figure.
#[must_use]
pub fn all(results: &Results, figure: &'static Figure) -> Vec<Judged> {
    let judged = |claim: &'static Claim| {
        let ours = measured(results, figure, claim.ours);
        let lost = lost(results, figure, claim);
        let verdict = match verdict(claim, ours.as_ref()) {
            Verdict::TooFew => Verdict::TooFew,
            _ if !lost.is_empty() => Verdict::Open,
            verdict => verdict,
        };
        Judged { claim, verdict, ours, lost }
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
        Some(papers) if within(ours, papers, SIZE) => Verdict::Size,
        Some(papers) if ours.low > papers => Verdict::Larger,
        Some(papers) if ours.high < papers => Verdict::Smaller,
        _ => Verdict::Direction,
    }
}

/// Whether the whole interval is of this size. The median alone would call noise an agreement.
fn within(ours: &Ratio, papers: f64, factor: f64) -> bool {
    ours.low >= papers / factor && ours.high <= papers * factor
}

fn of_level(ours: &Ratio, papers: f64, less_is_better: bool) -> Verdict {
    if within(ours, papers, LEVEL) {
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

/// Good rounds of a claim's series that have no number, series by series; none where a series was not measured at all.
fn lost(results: &Results, figure: &Figure, claim: &Claim) -> Vec<String> {
    let terms = match claim.ours {
        Ours::Level(term) => vec![term],
        Ours::Times(one, other) | Ours::Percent(one, other) => vec![one, other],
    };
    let places: Option<Vec<_>> = terms.iter().map(|term| Some((*term, place(results, figure, *term)?))).collect();
    let mut found = Vec::new();
    for (term, (experiment, target)) in places.into_iter().flatten() {
        // A share is set against this one's rounds.
        let base = experiment.targets.iter().find(|target| series::is_base(target, term.value));
        for (name, target) in [(term.series, Some(target)), ("native", base)] {
            let Some(target) = target else { continue };
            let count = series::lost(target, term.value);
            let words = format!("{name}: {count} of {} rounds", target.rounds.len());
            if count > 0 && !found.contains(&words) {
                found.push(words);
            }
        }
    }
    found
}

/// The experiment and the target of a term.
fn place<'a>(results: &'a Results, figure: &Figure, term: Term) -> Option<(&'a Experiment, &'a TargetResult)> {
    let at = |experiment: &&Experiment| (series::x(experiment) - term.x).abs() < 1e-6;
    series::experiments(results, figure, term.panel).into_iter().filter(at).find_map(|experiment| {
        let target = experiment.targets.iter().find(|target| series::label(experiment, target) == term.series)?;
        Some((experiment, target))
    })
}

/// The experiment of a term, and its number in each round.
fn find<'a>(results: &'a Results, figure: &Figure, term: Term) -> Option<(&'a Experiment, Rounds)> {
    let (experiment, target) = place(results, figure, term)?;
    let rounds = series::rounds(experiment, target, term.value);
    (!rounds.is_empty()).then_some((experiment, rounds))
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

/// The paper's number of a claim, with a star if it is computed or a bound.
#[must_use]
pub fn papers(claim: &Claim) -> String {
    let mark = if claim.from.is_empty() { "" } else { "*" };
    claim.papers.map_or_else(|| "no number".into(), |papers| number(claim.ours, papers) + mark)
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

/// What agrees, and what does not: two sentences.
#[must_use]
pub fn sentences(judged: &[Judged]) -> [String; 2] {
    let list = |wanted: Option<bool>| {
        judged.iter().filter(|judged| judged.agrees() == wanted).map(sentence).collect::<Vec<_>>().join("; ")
    };
    let undecided = judged.iter().filter(|judged| judged.agrees().is_none()).count();
    let all = judged.len();
    let or = |list: String, none: &str| if list.is_empty() { none.to_string() } else { list };
    let left = match undecided {
        0 => String::new(),
        count => format!(" ({count} of {all} were not decided: too few rounds, or not measured)"),
    };
    let nothing = if undecided == all { "nothing was decided" } else { "nothing" };
    [
        format!("What agrees: {}{left}.", or(list(Some(true)), nothing)),
        format!("What does not: {}.", or(list(Some(false)), nothing)),
    ]
}

fn sentence(judged: &Judged) -> String {
    let claim = judged.claim;
    let papers = claim.papers.map_or_else(String::new, |papers| format!(" {}", number(claim.ours, papers)));
    let from = if claim.from.is_empty() { String::new() } else { format!("; {}", claim.from) };
    let lost = if judged.lost.is_empty() { String::new() } else { format!(", as {}", without(judged)) };
    let words = judged.words();
    format!("{}: here {}, {}{papers} ({}{from}), {words}{lost}", claim.what, ours(judged), claim.system, claim.section)
}

/// Which good rounds have no number.
fn without(judged: &Judged) -> String {
    format!("rounds that did nothing, or never came back, have no number ({})", judged.lost.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::term;

    fn ratio(low: f64, median: f64, high: f64, rounds: usize) -> Ratio {
        Ratio { median, low, high, confidence: 0.95, rounds: vec![median; rounds] }
    }

    fn claim(ours: Ours, papers: Option<f64>) -> Claim {
        Claim { what: "w", system: "S", section: "§1", papers, from: "", baseline: false, ours, why: "y" }
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
            // The median is of the paper's size, the interval is not.
            (1.01, 1.6, 3.4, Some(1.58), Verdict::Direction),
            (1.1, 1.2, 1.7, Some(1.58), Verdict::Direction),
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
            (74.0, 82.0, 87.0, Verdict::Same, Verdict::Same),
            (10.0, 82.0, 900.0, Verdict::Open, Verdict::Open),
            (70.0, 82.0, 95.0, Verdict::Open, Verdict::Open),
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
    fn a_baseline_that_does_better_contradicts_the_paper() {
        let judged = |baseline, verdict| {
            let level = Ours::Level(term("p", Value::Kept, "s", 1.0));
            let claim: &'static Claim = Box::leak(Box::new(Claim { baseline, ..claim(level, Some(40.0)) }));
            Judged { claim, ours: Some(ratio(140.0, 149.0, 160.0, 5)), verdict, lost: vec![] }
        };
        assert_eq!(judged(false, Verdict::Better).agrees(), Some(true));
        assert_eq!(judged(true, Verdict::Better).agrees(), Some(false));
        assert_eq!(judged(true, Verdict::Same).agrees(), Some(true));
        assert!(sentences(&[judged(true, Verdict::Better)])[1].ends_with("better than theirs."));
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
        let judged = |verdict, ours: Option<Ratio>| Judged { claim: leaked, ours, verdict, lost: vec![] };
        let agreed = judged(Verdict::Size, Some(ratio(1.4, 1.5, 1.6, 5)));
        let opposed = judged(Verdict::Opposed, Some(ratio(0.4, 0.5, 0.6, 5)));
        let [one, two] = sentences(&[agreed.clone(), opposed]);
        assert_eq!(one, "What agrees: w: here 1.50× (1.40×–1.60×), S 1.58× (§1), agrees in size.");
        assert_eq!(two, "What does not: w: here 0.500× (0.400×–0.600×), S 1.58× (§1), the other way.");
        let open = judged(Verdict::Open, Some(ratio(0.9, 1.5, 1.6, 5)));
        assert!(sentences(std::slice::from_ref(&open))[1].ends_with("noise decides nothing."));
        let lost = Judged { lost: vec!["s: 1 of 5 rounds".into()], ..open };
        assert!(
            sentences(&[lost])[1].ends_with(
                "nothing is decided, as rounds that did nothing, or never came back, have no number (s: 1 of 5 rounds)."
            )
        );
        let [one, two] = sentences(&[judged(Verdict::Missing, None)]);
        assert!(
            one.starts_with("What agrees: nothing was decided (1 of 1") && two.ends_with("not: nothing was decided."),
            "{one} {two}"
        );
        assert_eq!(sentences(&[agreed])[1], "What does not: nothing.");
    }
}
