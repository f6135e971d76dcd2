//! Functions: trigonometric, exponential, logarithms, gcd and lcm.

use crate::algebra::elementary::{cos, divisor_or_multiple, ln, other, sin};
use crate::algebra::power::{exponential, power};
use crate::algebra::{Function, Generator, Value};
use crate::lex::Kind;
use crate::limits::{Checked, Fuel, Unsupported};
use crate::parse::{Parser, SYNTAX};

impl Parser<'_> {
    /// A function after its name.
    pub(super) fn function(&mut self, name: &str) -> Checked<Value> {
        if matches!(name, "gcd" | "lcm") {
            return self.divisor_or_multiple(name == "lcm");
        }
        let base = if self.eat('_') {
            if !matches!(name, "log") {
                return Err(SYNTAX);
            }
            Some(self.nested(Self::bare_argument)?)
        } else {
            None
        };
        let exponent = if self.eat('^') { Some(self.exponent()?) } else { None };
        if exponent.as_ref().is_some_and(|value| *value == Value::integer(-1)) {
            return Err(Unsupported("the exponent −1 of a function is ambiguous"));
        }
        let degrees = std::mem::replace(&mut self.degrees, true);
        let argument = self.nested(Self::function_argument)?;
        self.degrees = degrees;
        let value = apply(name, base.as_ref(), &argument, self.fuel)?;
        match exponent {
            Some(exponent) => power(&value, &exponent, self.fuel),
            None => Ok(value),
        }
    }

    /// A group or one operand, without factorial.
    fn bare_argument(&mut self) -> Checked<Value> {
        match self.kind() {
            Some(Kind::Sign('{' | '(')) => self.group(),
            Some(Kind::Number(digits, 0)) if digits.len() <= 2 => {
                self.advance(1);
                Ok(Value::integer(digits.parse().map_err(|_| SYNTAX)?))
            }
            Some(Kind::Variable(_)) => self.operand(),
            _ => Err(SYNTAX),
        }
    }

    /// A group, or a product up to the next operator or function.
    fn function_argument(&mut self) -> Checked<Value> {
        if matches!(self.kind(), Some(Kind::Sign('(' | '{'))) {
            let value = self.group()?;
            // `\sin(x)^2` may be `\sin(x^2)`.
            return if self.is('^') || self.is('!') { Err(SYNTAX) } else { Ok(value) };
        }
        let mut argument = self.power()?;
        while self.starts_operand(false)
            && !self.is('(')
            && !matches!(
                self.kind(),
                Some(Kind::Command(name)) if !matches!(*name, "sqrt" | "frac")
            )
        {
            argument = argument.times(&self.power()?, self.fuel)?;
        }
        if self.is('/') || self.is('(') {
            return Err(Unsupported("the argument of a function is ambiguous"));
        }
        Ok(argument)
    }

    fn divisor_or_multiple(&mut self, multiple: bool) -> Checked<Value> {
        self.expect('(')?;
        let mut value = self.sum()?;
        while self.eat(',') {
            value = divisor_or_multiple(&value, &self.sum()?, multiple, self.fuel)?;
        }
        self.expect(')')?;
        Ok(value)
    }
}

fn apply(name: &str, base: Option<&Value>, argument: &Value, fuel: &Fuel) -> Checked<Value> {
    let one = Value::one();
    match name {
        "sin" => sin(argument, fuel),
        "cos" => cos(argument, fuel),
        "tan" => sin(argument, fuel)?.over(&cos(argument, fuel)?, fuel),
        "cot" => cos(argument, fuel)?.over(&sin(argument, fuel)?, fuel),
        "sec" => one.over(&cos(argument, fuel)?, fuel),
        "csc" => one.over(&sin(argument, fuel)?, fuel),
        "cis" => {
            let imaginary = sin(argument, fuel)?.times(&Value::from(Generator::Imaginary), fuel)?;
            cos(argument, fuel)?.plus(&imaginary, fuel)
        }
        "arcsin" => Ok(other(Function::Arcsin, argument)),
        "arccos" => Ok(other(Function::Arccos, argument)),
        "arctan" => Ok(other(Function::Arctan, argument)),
        "sinh" => Ok(other(Function::Sinh, argument)),
        "cosh" => Ok(other(Function::Cosh, argument)),
        "tanh" => other(Function::Sinh, argument).over(&other(Function::Cosh, argument), fuel),
        "exp" => exponential(argument, fuel),
        "ln" => ln(argument, fuel),
        "lg" => ln(argument, fuel)?.over(&ln(&Value::integer(10), fuel)?, fuel),
        "log" => match base {
            Some(base) => ln(argument, fuel)?.over(&ln(base, fuel)?, fuel),
            None => ln(argument, fuel)?.times(&Value::from(Generator::LogBase), fuel),
        },
        _ => Err(Unsupported("a function is not supported")),
    }
}
