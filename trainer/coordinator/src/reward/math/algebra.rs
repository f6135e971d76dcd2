//! Expressions, equations and inequalities in variables, compared by canonical form: multivariate
//! rational functions with exact coefficients.
//!
//! ```text
//!  "2(x+1)"          ─▶ 2x + 2          equals "2x + 2", "y = 2x + 2"
//!  "x + 2y - 3z = 0" ─▶ x + 2y − 3z     equals any nonzero multiple
//!  "3x + y < 4"      ─▶ −3x − y + 4 > 0 equals any positive multiple
//! ```
//!
//! π and square roots of whole numbers are variables without further rules: forms that are only
//! equal by such a rule are not equal here. Anything that is not understood is not parsed.

mod polynomial;
mod tokens;

use polynomial::{Fraction, Polynomial};
use tokens::{Token, tokens};

/// Maximum nesting of brackets.
const MAX_DEPTH: u32 = 16;
/// Largest absolute value of an exponent.
const MAX_EXPONENT: i64 = 16;

/// A form with at least one variable.
#[derive(Clone, Debug, PartialEq)]
pub enum Form {
    Expression(Fraction),
    /// `name = expression`, where the expression does not contain the name.
    Definition {
        name: String,
        value: Fraction,
    },
    /// The polynomial is 0, or not.
    Equation {
        zero: Polynomial,
        holds: bool,
    },
    /// The polynomial is above 0, or not below.
    Inequality {
        positive: Polynomial,
        strict: bool,
    },
}

impl Form {
    /// Whether both have the same solutions or the same value.
    pub fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Expression(a), Self::Expression(b) | Self::Definition { value: b, .. })
            | (Self::Definition { value: a, .. }, Self::Expression(b)) => a == b,
            (Self::Definition { name: a, value: x }, Self::Definition { name: b, value: y })
                if a == b =>
            {
                x == y
            }
            (
                Self::Inequality { positive: a, strict: s },
                Self::Inequality { positive: b, strict: t },
            ) => s == t && a.is_multiple_of(b, true),
            _ => match (self.equation(), other.equation()) {
                (Some((a, s)), Some((b, t))) => s == t && a.is_multiple_of(&b, false),
                _ => false,
            },
        }
    }

    fn equation(&self) -> Option<(Polynomial, bool)> {
        match self {
            Self::Equation { zero, holds } => Some((zero.clone(), *holds)),
            Self::Definition { name, value } if name.chars().count() == 1 => {
                let zero = Fraction::variable(name).minus(value)?;
                Some((zero.numerator(), true))
            }
            _ => None,
        }
    }
}

/// Parses a formula. `None` if it is not understood as a whole, or has no variable.
pub fn parse(text: &str) -> Option<Form> {
    let tokens = tokens(text)?;
    let is_relation = |token: &Token| matches!(token, Token::Relation(_));
    let sides: Vec<&[Token]> = tokens.split(is_relation).collect();
    let relation = tokens.iter().find(|token| is_relation(token));
    let form = match (sides.as_slice(), relation) {
        ([only], None) => Form::Expression(expression(only)?),
        ([left, right], Some(Token::Relation(relation))) => related(left, *relation, right)?,
        _ => return None,
    };
    has_variable(&form).then_some(form)
}

fn has_variable(form: &Form) -> bool {
    match form {
        Form::Expression(value) | Form::Definition { value, .. } => value.has_variable(),
        Form::Equation { zero, .. } => zero.has_variable(),
        Form::Inequality { positive, .. } => positive.has_variable(),
    }
}

fn related(left: &[Token], relation: char, right: &[Token]) -> Option<Form> {
    if let (Some(name), '=') = (name(left), relation) {
        let value = expression(right)?;
        if !value.contains(&name) {
            return Some(Form::Definition { name, value });
        }
    }
    let difference = expression(left)?.minus(&expression(right)?)?;
    let zero = || difference.numerator();
    match relation {
        '=' => Some(Form::Equation { zero: zero(), holds: true }),
        '≠' => Some(Form::Equation { zero: zero(), holds: false }),
        '>' | '≥' | '<' | '≤' => {
            let positive = difference.polynomial()?;
            let positive =
                if matches!(relation, '<' | '≤') { positive.negated() } else { positive };
            Some(Form::Inequality { positive, strict: matches!(relation, '<' | '>') })
        }
        _ => None,
    }
}

/// `y`, or `f(x)`.
fn name(side: &[Token]) -> Option<String> {
    match side {
        [Token::Variable(name)] => Some(name.clone()),
        [
            Token::Variable(function),
            Token::Open('('),
            Token::Variable(argument),
            Token::Close(')'),
        ] => Some(format!("{function}({argument})")),
        _ => None,
    }
}

fn expression(tokens: &[Token]) -> Option<Fraction> {
    let mut parser = Parser { tokens, at: 0, depth: 0 };
    let value = parser.sum()?;
    (parser.at == tokens.len()).then_some(value)
}

struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
    depth: u32,
}

impl Parser<'_> {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn eat(&mut self, operator: char) -> bool {
        let found = self.peek() == Some(&Token::Operator(operator));
        self.at += usize::from(found);
        found
    }

    fn sum(&mut self) -> Option<Fraction> {
        let negative = self.eat('-');
        if !negative {
            self.eat('+');
        }
        let first = self.product()?;
        let mut sum = if negative { first.negated() } else { first };
        loop {
            if self.eat('+') {
                sum = sum.plus(&self.product()?)?;
            } else if self.eat('-') {
                sum = sum.minus(&self.product()?)?;
            } else {
                return Some(sum);
            }
        }
    }

    fn product(&mut self) -> Option<Fraction> {
        let mut product = self.power()?;
        loop {
            if self.eat('*') {
                product = product.times(&self.power()?)?;
            } else if self.eat('/') {
                product = product.over(&self.power()?)?;
            } else if matches!(
                self.peek(),
                Some(Token::Variable(_) | Token::Open(_) | Token::Fraction | Token::Root(_))
            ) {
                product = product.times(&self.power()?)?;
            } else {
                return Some(product);
            }
        }
    }

    fn power(&mut self) -> Option<Fraction> {
        let base = self.operand()?;
        if !self.eat('^') {
            return Some(base);
        }
        let exponent = self.operand()?.integer()?;
        if exponent.abs() > MAX_EXPONENT {
            return None;
        }
        base.power(exponent)
    }

    fn operand(&mut self) -> Option<Fraction> {
        let token = self.peek()?.clone();
        self.at += 1;
        match token {
            Token::Number(value) => Some(Fraction::constant(value)),
            Token::Variable(name) | Token::Root(name) => Some(Fraction::variable(&name)),
            Token::Fraction => {
                let above = self.group('{')?;
                above.over(&self.group('{')?)
            }
            Token::Open(open) => {
                self.at -= 1;
                self.group(open)
            }
            Token::Operator('-') => self.operand().map(|value| value.negated()),
            Token::Operator(_) | Token::Close(_) | Token::Relation(_) => None,
        }
    }

    fn group(&mut self, open: char) -> Option<Fraction> {
        if self.depth == MAX_DEPTH || self.peek() != Some(&Token::Open(open)) {
            return None;
        }
        let close = match open {
            '(' => ')',
            '[' => ']',
            _ => '}',
        };
        (self.at, self.depth) = (self.at + 1, self.depth + 1);
        let value = self.sum()?;
        self.depth -= 1;
        let is_closed = self.peek() == Some(&Token::Close(close));
        self.at += 1;
        is_closed.then_some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    fn equal(left: &str, right: &str) -> bool {
        match (parse(left), parse(right)) {
            (Some(left), Some(right)) => left.equals(&right) && right.equals(&left),
            _ => false,
        }
    }

    #[test]
    fn forms_are_equal_if_their_canonical_forms_are() {
        for (left, right) in [
            ("2(x+1)", "2x + 2"),
            ("(a+b)^2", "a^2+2ab+b^2"),
            (r"\frac{x^2-1}{x-1}", "x+1"),
            (r"\frac{1}{2}x", "x/2"),
            ("y = 2x+1", "2x+1"),
            ("y=2x+1", "2x - y + 1 = 0"),
            ("x+2y-3z=0", "-2x-4y+6z = 0"),
            ("3x+y<4", "4 > y+3x"),
            (r"2\pi r", r"2 \cdot \pi \cdot r"),
            (r"x_1 + x_{2}", "x_{2}+x_{1}"),
            (r"3+4i", "4i+3"),
            (r"\left(x-1\right)\left(x+1\right)", "x^{2}-1"),
        ] {
            assert!(equal(left, right), "{left} {right}");
        }
    }

    #[test]
    fn other_forms_are_not_equal() {
        for (left, right) in [
            ("2x+1", "2x-1"),
            ("x+y", "x-y"),
            ("x+2y-3z=0", "x+2y+3z=0"),
            ("x+2y-3z=0", "x+2y-3z=1"),
            ("3x+y<4", r"3x+y\le 4"),
            ("3x+y<4", "3x+y>4"),
            ("x+y=1", r"x+y \ne 1"),
            ("y=2x+1", "z=2x+1"),
            ("x^2", "x^3"),
            (r"\frac{x}{2}", r"\frac{2}{x}"),
            (r"5\alpha", r"5\beta"),
        ] {
            assert!(!equal(left, right), "{left} {right}");
        }
    }

    #[test]
    fn what_is_not_understood_is_not_parsed() {
        for text in [
            "",
            "5",
            "2+3",
            r"\log x",
            "x+",
            "(x",
            "x)",
            "x^y",
            "x^{99}",
            r"x \to 5",
            r"x \mid 5",
            "x=1=2",
            r"\sqrt{x}",
            "1/(x-x)",
            "x!",
            "every x + 1",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(parse(&"(".repeat(5000)), None);
        assert_eq!(parse("(a+b+c+d+e+f+g+h)^{16}"), None);
    }
}
