//! The page as one HTML document: markup, style, script and, in a report, embedded responses. Pure.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

const STYLE: &str = include_str!("../page/style.css");
const BODY: &str = include_str!("../page/body.html");
/// Parts of the script, in order.
const SCRIPT: [&str; 8] = [
    include_str!("../page/data.js"),
    include_str!("../page/dom.js"),
    include_str!("../page/chart.js"),
    include_str!("../page/curves.js"),
    include_str!("../page/facts.js"),
    include_str!("../page/plan.js"),
    include_str!("../page/texts.js"),
    include_str!("../page/page.js"),
];

/// The document. With `responses`, by path, it sends no request.
pub fn document(responses: Option<&BTreeMap<String, Value>>) -> String {
    let script = script();
    let data = responses.map_or_else(String::new, |responses| {
        // A text may contain the end of the element.
        let json = serde_json::to_string(responses).unwrap_or_default().replace('<', "\\u003c");
        format!("<script type=\"application/json\" id=\"responses\">{json}</script>\n")
    });
    let policy = policy(&script, responses.is_some());
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>rljob</title>\n<style>{STYLE}</style>\n</head>\n\
         <body>\n{BODY}{data}<script>{script}</script>\n</body>\n</html>\n",
    )
}

/// Content-Security-Policy of the live page.
pub fn live_policy() -> String {
    format!("{}; frame-ancestors 'none'", policy(&script(), false))
}

fn script() -> String {
    format!("\"use strict\";\n{}", SCRIPT.concat())
}

/// Allows this style, this script and, unless data are embedded, requests to the server of the
/// page; nothing else.
fn policy(script: &str, is_embedded: bool) -> String {
    let hash = |text: &str| format!("'sha256-{}'", BASE64.encode(Sha256::digest(text)));
    let connect = if is_embedded { "'none'" } else { "'self'" };
    format!(
        "default-src 'none'; style-src {}; script-src {}; connect-src {connect}; base-uri 'none'; \
         form-action 'none'",
        hash(STYLE),
        hash(script),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
        text.split_once(start).unwrap().1.split_once(end).unwrap().0
    }

    #[test]
    fn the_policy_allows_the_style_and_the_script_of_the_page_only() {
        let live = document(None);
        let policy = between(&live, "http-equiv=\"Content-Security-Policy\" content=\"", "\"");
        let hash = |text: &str| BASE64.encode(Sha256::digest(text));
        let expected = format!(
            "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src \
             'self'; base-uri 'none'; form-action 'none'",
            hash(between(&live, "<style>", "</style>")),
            hash(between(&live, "<script>", "</script>")),
        );
        assert_eq!(policy, expected);
        assert_eq!(live_policy(), format!("{expected}; frame-ancestors 'none'"));
        for blocked in [" style=\"", " onclick=\"", "javascript:", "innerHTML"] {
            assert!(!live.contains(blocked), "{blocked}");
        }
    }

    #[test]
    fn the_page_needs_no_other_server() {
        let page = document(None).replace("http://www.w3.org/2000/svg", "");
        for reference in ["http:", "https:", "//cdn", " src=", "@import", "url("] {
            assert!(!page.contains(reference), "{reference}");
        }
    }

    #[test]
    fn embedded_texts_cannot_end_their_element() {
        let hostile = "</script><script>alert(1)</script><!--";
        let responses = BTreeMap::from([("v1/runs".to_owned(), Value::from(hostile))]);
        let page = document(Some(&responses));
        assert_eq!(page.matches("alert(1)").count(), 1);
        assert!(!page.contains("<script>alert"), "{page}");
        let json = between(&page, "id=\"responses\">", "</script>");
        let read: BTreeMap<String, Value> = serde_json::from_str(json).unwrap();
        assert_eq!(read, responses);
    }
}
