//! Pages that commands write: one file each, which asks for nothing and runs nothing.

use maud::{DOCTYPE, Markup, PreEscaped, html};

/// Nothing is loaded and nothing is run, whatever the data say.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'";

/// A page with this title, these style sheets one after the other, and this body.
#[must_use]
pub fn page(title: &str, styles: &[&str], body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                // Without it a browser asks the server for an icon.
                link rel="icon" href="data:,";
                title { (title) }
                style { @for style in styles { (PreEscaped(style)) } }
            }
            body { (body) }
        }
    };
    page.into_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_whole_and_its_title_is_text() {
        let page = page("</title><script>", &["p { color: red }", "b {}"], &html! { p { "&" } });
        assert!(page.starts_with("<!DOCTYPE html><html") && page.ends_with("<body><p>&amp;</p></body></html>"), "{page}");
        assert!(page.contains("<title>&lt;/title&gt;&lt;script&gt;</title>"), "{page}");
        assert!(page.contains("<style>p { color: red }b {}</style>") && page.contains("default-src 'none'"), "{page}");
    }
}
