//! Text of other origin on its way to a terminal, a line or a page: a program's name, its output, the contents of a file of
//! results.
//!
//! A terminal obeys control characters, and shows text after a character that turns the direction of writing in another order
//! than it has. Both kinds of characters are replaced by their number: `\u{1b}[2J`.

/// `text` in one line, without characters that a terminal obeys.
#[must_use]
pub fn plain(text: &str) -> String {
    with(text, &[], |character| character.escape_default().collect())
}

/// As [`plain`], for several lines, and columns of them.
#[must_use]
pub fn plain_lines(text: &str) -> String {
    with(text, &['\n', '\t'], |character| character.escape_default().collect())
}

/// The same JSON, with such characters in its strings written as `\u001b`.
#[must_use]
pub fn plain_json(json: &str) -> String {
    // Outside of strings JSON has no such character except a newline; and no such character is above U+FFFF.
    with(json, &['\n'], |character| format!("\\u{:04x}", u32::from(character)))
}

fn with(text: &str, kept: &[char], show: impl Fn(char) -> String) -> String {
    let mut all = String::with_capacity(text.len());
    for character in text.chars() {
        if is_obeyed(character) && !kept.contains(&character) {
            all.push_str(&show(character));
        } else {
            all.push(character);
        }
    }
    all
}

/// Control characters, including those of eight bits; ends of lines and paragraphs; characters that have no width, or
/// turn the direction.
fn is_obeyed(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_to_obey() {
        assert_eq!(plain("a \u{1b}]0;x\u{7}\u{9b}2J\nb\tc"), "a \\u{1b}]0;x\\u{7}\\u{9b}2J\\nb\\tc");
        assert_eq!(plain("\u{202e}txt.exe \u{2066}é日本"), "\\u{202e}txt.exe \\u{2066}é日本");
        assert_eq!(plain_lines("a\n\tb\r\u{85}"), "a\n\tb\\r\\u{85}");
        assert_eq!(plain("sort -S 1G"), "sort -S 1G");
    }

    #[test]
    fn json_stays_what_it_is() {
        let name = "a\u{1b}[2J\u{9b}\u{7f}\u{202e}\n";
        let json = plain_json(&serde_json::to_string_pretty(&[name]).unwrap());
        assert!(!json.chars().any(|character| is_obeyed(character) && character != '\n'), "{json:?}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&json).unwrap(), [name]);
    }
}
