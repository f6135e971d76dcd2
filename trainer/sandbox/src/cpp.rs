//! Source of a C++ program with its tests: programs with functions and statements get a `main` that
//! runs one of them. Pure.
//!
//! ```text
//!  harness ─ main of the program renamed ─ program ─┬─ main: arguments as JSON ─▶ result as JSON
//!                                                   └─ setup, main: secret, index ─▶ secret
//! ```
//!
//! Descriptor 3 is that of results. All statements of a row are compiled with the program, once.

use std::fmt::Write as _;

use crate::tests_of_row::Tests;

const HARNESS: &str = include_str!("harness.cpp");
/// Name of the class whose method is called, as on LeetCode.
const SOLUTION: &str = "Solution";

/// The source to compile.
pub fn source(program: &str, tests: &Tests) -> String {
    match tests {
        Tests::Streams(_) => program.to_owned(),
        Tests::Calls { function, .. } => {
            let owner = if has_solution(program) { SOLUTION } else { "" };
            // `signed`: programs redefine `int`.
            let main = format!("signed main() {{ rljob::call(&{owner}::{function}); }}\n");
            format!("{HARNESS}{program}\n#undef main\n{main}")
        }
        Tests::Asserts { setup, statements } => {
            let mut source = format!(
                "{HARNESS}{program}\n#undef main\n#undef NDEBUG\n#include <cassert>\n{setup}\n"
            );
            let mut names = Vec::with_capacity(statements.len());
            for (index, statement) in statements.iter().enumerate() {
                let name = format!("rljob_test_{index}");
                // Writing to a text does not fail.
                let _ = writeln!(source, "static void {name}() {{\n{statement}\n;}}");
                names.push(name);
            }
            let names = names.join(", ");
            let _ = writeln!(source, "signed main() {{ rljob::check({{{names}}}); }}");
            source
        }
    }
}

/// Whether a program defines the class `Solution`.
fn has_solution(program: &str) -> bool {
    let words = program.split(|c: char| !c.is_alphanumeric() && c != '_');
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    words.windows(2).any(|pair| matches!(pair, ["class" | "struct", SOLUTION]))
}

/// Whether a statement is one of Python that no compiler of C++ reads.
pub fn is_python(statement: &str) -> bool {
    let rest = statement.trim_start().strip_prefix("assert");
    rest.is_some_and(|rest| rest.starts_with(' ') && !rest.trim_start().starts_with('('))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after_harness(program: &str, tests: &str) -> String {
        let source = source(program, &Tests::parse(tests).unwrap());
        source.strip_prefix(HARNESS).unwrap_or(&source).to_owned()
    }

    #[test]
    fn a_program_is_followed_by_the_main_of_its_tests() {
        let streams = r#"{"inputs": ["1"], "outputs": ["1"]}"#;
        assert_eq!(after_harness("int main() {}", streams), "int main() {}");
        let calls = r#"{"fn_name": "add", "inputs": [[1]], "outputs": [1]}"#;
        let function = "int add(int a);\n#undef main\nsigned main() { rljob::call(&::add); }\n";
        assert_eq!(after_harness("int add(int a);", calls), function);
        let method = after_harness("class Solution{ };", calls);
        assert!(method.ends_with("signed main() { rljob::call(&Solution::add); }\n"), "{method}");
        let asserts = r#"{"asserts": ["assert(f() == 1)", "f();"], "setup": "int g;"}"#;
        let expected = "int f();\n#undef main\n#undef NDEBUG\n#include <cassert>\nint g;\n\
            static void rljob_test_0() {\nassert(f() == 1)\n;}\n\
            static void rljob_test_1() {\nf();\n;}\n\
            signed main() { rljob::check({rljob_test_0, rljob_test_1}); }\n";
        assert_eq!(after_harness("int f();", asserts), expected);
    }

    #[test]
    fn statements_of_python_are_recognized() {
        for (statement, expected) in [
            ("assert f() == 1", true),
            ("  assert not f()", true),
            ("assert(f() == 1);", false),
            ("assert (f() == 1);", false),
            ("assertion();", false),
        ] {
            assert_eq!(is_python(statement), expected, "{statement}");
        }
    }
}
