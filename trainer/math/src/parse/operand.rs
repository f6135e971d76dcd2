//! Operands: numerals, variables, groups, roots, fractions and values between bars.

use num_traits::ToPrimitive;

use crate::algebra::elementary::{abs, binomial, factorial, rounded};
use crate::algebra::roots::root;
use crate::algebra::{Function, Generator, Rational, Value, integer};
use crate::lex::Kind;
use crate::limits::{Checked, Unsupported};
use crate::parse::{Parser, SYNTAX};

/// Names of functions if a bracket follows.
const NAMED_FUNCTIONS: [&str; 7] = ["f", "g", "h", "F", "G", "P", "Q"];

impl Parser<'_> {
    pub(super) fn operand(&mut self) -> Checked<Value> {
        let value = self.nested(Self::bare_operand)?;
        self.postfix(value)
    }

    /// Factorials, and degrees in arguments of functions.
    pub(super) fn postfix(&mut self, mut value: Value) -> Checked<Value> {
        loop {
            if self.eat('!') {
                if self.is('!') {
                    return Err(Unsupported("double factorials are not supported"));
                }
                value = factorial(&value, self.fuel)?;
            } else if self.degrees && self.eat('°') {
                let radians = Value::from(Generator::Pi).scaled(&integer(180).recip())?;
                value = value.times(&radians, self.fuel)?;
            } else {
                return Ok(value);
            }
        }
    }

    fn bare_operand(&mut self) -> Checked<Value> {
        let kind = self.kind().ok_or(SYNTAX)?;
        match kind {
            Kind::Number(..) => return self.mixed(),
            Kind::Sign('(' | '{' | '[') => return self.group(),
            _ => self.advance(1),
        }
        match kind {
            Kind::Variable(name) => self.variable(name),
            Kind::Sign('|') => self.magnitude(),
            Kind::Sign('π') => Ok(Value::from(Generator::Pi)),
            Kind::Sign('⌊') => {
                let value = self.sum()?;
                self.expect('⌋')?;
                rounded(&value, false)
            }
            Kind::Sign('⌈') => {
                let value = self.sum()?;
                self.expect('⌉')?;
                rounded(&value, true)
            }
            Kind::Command("sqrt") => self.root(),
            Kind::Command("frac") => {
                let above = self.argument()?;
                above.over(&self.argument()?, self.fuel)
            }
            Kind::Command("binom") => {
                let above = self.argument()?;
                binomial(&above, &self.argument()?, self.fuel)
            }
            Kind::Command(name) => self.function(name),
            _ => Err(SYNTAX),
        }
    }

    fn magnitude(&mut self) -> Checked<Value> {
        let bars = self.bars;
        self.bars = bars.saturating_add(1);
        let value = self.sum()?;
        self.expect('|')?;
        self.bars = bars;
        abs(&value, self.fuel)
    }

    /// `(sum)`, `{sum}` or `[sum]`.
    pub(super) fn group(&mut self) -> Checked<Value> {
        let close = match self.kind() {
            Some(Kind::Sign('(')) => ')',
            Some(Kind::Sign('{')) => '}',
            Some(Kind::Sign('[')) => ']',
            _ => return Err(SYNTAX),
        };
        self.advance(1);
        let bars = std::mem::take(&mut self.bars);
        let value = self.sum()?;
        self.bars = bars;
        self.expect(close)?;
        Ok(value)
    }

    fn root(&mut self) -> Checked<Value> {
        let degree = if self.is('[') {
            let degree = self.group()?.rational().filter(Rational::is_integer).ok_or(SYNTAX)?;
            degree.to_u32().ok_or(SYNTAX)?
        } else {
            2
        };
        let inside = match self.kind() {
            Some(Kind::Sign('(' | '{')) => self.group()?,
            Some(Kind::Number(..)) => self.number()?,
            _ => self.nested(Self::bare_operand)?,
        };
        root(&inside, degree, self.fuel)
    }

    /// Argument of a fraction: a group, one digit, or an operand without braces.
    fn argument(&mut self) -> Checked<Value> {
        match self.kind() {
            Some(Kind::Sign('{')) => self.group(),
            Some(Kind::Number(digits, 0)) if digits.len() == 1 => {
                self.advance(1);
                Ok(Value::integer(digits.parse().map_err(|_| SYNTAX)?))
            }
            Some(Kind::Number(..) | Kind::Sign('(' | '[')) | None => Err(SYNTAX),
            _ => self.nested(Self::bare_operand),
        }
    }

    /// A variable with its subscript; e and i are constants.
    fn variable(&mut self, name: &str) -> Checked<Value> {
        if self.is('_') {
            let name = format!("{name}{}", self.subscript()?);
            return Ok(Value::variable(&name));
        }
        match name {
            "e" => return Ok(Value::from(Generator::Euler)),
            "i" => return Ok(Value::from(Generator::Imaginary)),
            _ => {}
        }
        if NAMED_FUNCTIONS.contains(&name) && self.is('(') {
            let argument = self.nested(Self::group)?;
            let function = Function::Named(name.to_owned());
            return Ok(Value::from(Generator::Function(function, vec![argument])));
        }
        Ok(Value::variable(name))
    }

    /// `_1` or `_{n+1}` as text.
    fn subscript(&mut self) -> Checked<String> {
        self.expect('_')?;
        let mut text = "_".to_owned();
        let braces = self.eat('{');
        loop {
            match self.kind().ok_or(SYNTAX)? {
                Kind::Sign('}') if braces => {
                    self.advance(1);
                    return Ok(text);
                }
                Kind::Number(digits, 0) => text.push_str(digits),
                Kind::Variable(name) | Kind::Text(name) => text.push_str(name),
                Kind::Sign(sign @ ('+' | '-' | ',')) if braces => text.push(*sign),
                _ => return Err(SYNTAX),
            }
            self.advance(1);
            if !braces {
                return Ok(text);
            }
        }
    }
}
