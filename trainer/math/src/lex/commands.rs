//! LaTeX commands.

use crate::lex::{FUNCTION_NAMES, Kind, Lexer, MID, ROW, SET_CLOSE, SET_OPEN};
use crate::limits::{Checked, MAX_DEPTH, Unsupported};

const GREEK: [&str; 34] = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "varepsilon",
    "zeta",
    "eta",
    "theta",
    "iota",
    "kappa",
    "lambda",
    "mu",
    "nu",
    "xi",
    "rho",
    "sigma",
    "tau",
    "phi",
    "varphi",
    "chi",
    "psi",
    "omega",
    "ell",
    "Gamma",
    "Delta",
    "Theta",
    "Lambda",
    "Xi",
    "Sigma",
    "Phi",
    "Psi",
    "Omega",
    "hbar",
];

const UNKNOWN_COMMAND: Unsupported = Unsupported("a LaTeX command is not supported");

impl Lexer<'_> {
    pub(super) fn command(&mut self) -> Checked<()> {
        let start = self.at;
        while self.peek(0).is_some_and(|character| character.is_ascii_alphabetic()) {
            self.advance(1);
        }
        if self.at == start {
            return self.symbol();
        }
        let name = self.between(start, self.at);
        match name.as_str() {
            "left" | "right" if self.peek(0) == Some('.') => self.advance(1),
            "left" | "right" | "big" | "Big" | "bigl" | "bigr" | "Bigl" | "Bigr" | "bigg"
            | "Bigg" | "biggl" | "biggr" | "displaystyle" | "textstyle" | "limits" | "rm"
            | "bf" | "it" | "nolimits" | "boxed" | "fbox" | "hfill" | "allowbreak" => {}
            "quad" | "qquad" | "space" | "enspace" | "thinspace" | "hspace" => self.space = true,
            "text" | "textrm" | "textbf" | "textit" | "mbox" | "textsf" | "texttt" | "emph"
            | "textnormal" => return self.styled(true),
            "mathrm" | "operatorname" | "mathsf" | "mathtt" => return self.upright(),
            "mathbf" | "boldsymbol" | "mathit" | "mathcal" | "bm" | "mathbb" => {
                return self.math_font(&name);
            }
            "begin" | "end" => return self.environment(name == "begin"),
            _ => self.named(&name)?,
        }
        Ok(())
    }

    fn named(&mut self, name: &str) -> Checked<()> {
        let sign = match name {
            "circ" | "degree" => {
                self.degree();
                return Ok(());
            }
            "cdot" | "times" | "ast" => '*',
            "div" => '/',
            "pi" => 'π',
            "infty" => '∞',
            "cup" => '∪',
            "cap" => '∩',
            "pm" => '±',
            "mp" => '∓',
            "emptyset" | "varnothing" => '∅',
            "lbrace" => SET_OPEN,
            "rbrace" => SET_CLOSE,
            "lvert" | "rvert" | "vert" => '|',
            "approx" => '≈',
            "in" => '∈',
            "leq" | "le" | "leqslant" => '≤',
            "geq" | "ge" | "geqslant" => '≥',
            "lt" => '<',
            "gt" => '>',
            "neq" | "ne" => '≠',
            "colon" => ':',
            "mid" => MID,
            "setminus" | "backslash" => '∖',
            "lfloor" => '⌊',
            "rfloor" => '⌋',
            "lceil" => '⌈',
            "rceil" => '⌉',
            "pounds" => '£',
            "lbrack" => '[',
            "rbrack" => ']',
            _ => return self.operator(name),
        };
        self.sign(sign);
        Ok(())
    }

    /// Functions, fractions and Greek letters.
    fn operator(&mut self, name: &str) -> Checked<()> {
        let command = match name {
            "frac" | "dfrac" | "tfrac" | "cfrac" => "frac",
            "binom" | "dbinom" | "tbinom" => "binom",
            "overline" | "bar" => "overline",
            "dot" => "dot",
            "angle" => "angle",
            "triangle" => "triangle",
            _ => match FUNCTION_NAMES.iter().find(|function| **function == name) {
                Some(function) => function,
                None if GREEK.contains(&name) => {
                    self.push(Kind::Variable(format!("\\{name}")));
                    return Ok(());
                }
                None => {
                    self.push(Kind::Symbol(name.to_owned()));
                    return Ok(());
                }
            },
        };
        self.push(Kind::Command(command));
        let digits = match command {
            "frac" | "binom" => 2,
            "sqrt" => return self.sqrt_digit(),
            _ => 0,
        };
        self.digit_arguments(digits);
        Ok(())
    }

    /// The arguments of `\frac12` are single digits.
    fn digit_arguments(&mut self, count: usize) {
        for _ in 0..count {
            while self.peek(0).is_some_and(char::is_whitespace) {
                self.advance(1);
            }
            let Some(digit) = self.peek(0).filter(char::is_ascii_digit) else { return };
            self.advance(1);
            self.push(Kind::Number(digit.into(), 0));
        }
    }

    /// `\sqrt12` is `\sqrt{1}2` in LaTeX and √12 for many authors.
    fn sqrt_digit(&mut self) -> Checked<()> {
        let rest = self.characters.iter().skip(self.at);
        let mut rest = rest.skip_while(|character| character.is_whitespace());
        let digits = rest.by_ref().take_while(|character| character.is_ascii_digit()).count();
        if digits > 1 { Err(Unsupported("the argument of a root is ambiguous")) } else { Ok(()) }
    }

    /// A backslash before a character that is not a letter.
    fn symbol(&mut self) -> Checked<()> {
        let Some(character) = self.peek(0) else { return Err(UNKNOWN_COMMAND) };
        self.advance(1);
        match character {
            '{' => self.sign(SET_OPEN),
            '}' => self.sign(SET_CLOSE),
            '%' => self.sign('%'),
            '$' => self.sign('$'),
            '|' => self.sign('|'),
            '\\' => self.sign(ROW),
            '!' | '(' | ')' | '[' | ']' | '/' => {}
            ',' | ';' | ':' | ' ' | '>' => self.space = true,
            _ => return Err(UNKNOWN_COMMAND),
        }
        Ok(())
    }

    /// Position of the closing brace of the argument, after its opening brace is read.
    fn argument_end(&mut self) -> Option<usize> {
        while self.peek(0).is_some_and(char::is_whitespace) {
            self.advance(1);
        }
        if self.peek(0) != Some('{') {
            return None;
        }
        self.advance(1);
        let mut depth = 1_usize;
        let mut rest = self.characters.iter().enumerate().skip(self.at);
        let close = rest.find(|(_, character)| {
            depth = match character {
                '{' => depth.saturating_add(1),
                '}' => depth.saturating_sub(1),
                _ => depth,
            };
            depth == 0
        });
        close.map(|(at, _)| at)
    }

    /// `\text{…}`: letters are words.
    fn styled(&mut self, words: bool) -> Checked<()> {
        let end = self.argument_end().ok_or(Unsupported("unbalanced braces"))?;
        let depth = self.depth;
        if depth == MAX_DEPTH {
            return Err(Unsupported("the nesting is too deep"));
        }
        self.depth = depth.saturating_add(1);
        self.space |= words;
        self.run(end, words)?;
        self.depth = depth;
        self.at = end.saturating_add(1);
        self.space |= words;
        Ok(())
    }

    fn argument(&mut self) -> Checked<String> {
        let end = self.argument_end().ok_or(Unsupported("unbalanced braces"))?;
        let inside = self.between(self.at, end);
        self.at = end.saturating_add(1);
        Ok(inside.trim().to_owned())
    }

    /// `\mathrm{…}`: a function, a constant, or a unit.
    fn upright(&mut self) -> Checked<()> {
        let start = self.at;
        let name = self.argument()?;
        if let Some(function) = FUNCTION_NAMES.iter().find(|function| **function == name) {
            self.push(Kind::Command(function));
            return Ok(());
        }
        if matches!(name.as_str(), "e" | "i") {
            self.push(Kind::Variable(name));
            return Ok(());
        }
        self.at = start;
        self.styled(true)
    }

    /// Bold, calligraphic and blackboard letters.
    fn math_font(&mut self, font: &str) -> Checked<()> {
        if self.peek(0) != Some('{') {
            return if font == "mathbb" { Err(UNKNOWN_COMMAND) } else { Ok(()) };
        }
        if font != "mathbb" {
            return self.styled(false);
        }
        match self.argument()?.as_str() {
            "R" => self.sign('ℝ'),
            set => self.push(Kind::Symbol(format!("mathbb{{{set}}}"))),
        }
        Ok(())
    }

    fn environment(&mut self, begin: bool) -> Checked<()> {
        let name = self.argument()?;
        match name.as_str() {
            "array" if begin => drop(self.argument()?),
            "array" | "pmatrix" | "bmatrix" | "matrix" | "smallmatrix" => {}
            _ => {
                self.push(Kind::Symbol(name));
                return Ok(());
            }
        }
        self.push(if begin { Kind::Begin } else { Kind::End });
        Ok(())
    }
}
