//! Values of the text format: what a word means as a field of a given type.

use prost_reflect::{EnumDescriptor, Kind, Value};
use quadrille_core::site::{Fault, did_you_mean};

use super::tokens::{Token, shortened};

/// The value of `token`, with or without a minus sign before it, as a field of `kind` (not a message).
pub(super) fn scalar(kind: &Kind, negative: bool, token: &Token<'_>) -> Result<Value, Fault> {
    let value = match (kind, token) {
        (Kind::Bool, _) if !negative => boolean(token).map(Value::Bool),
        (Kind::String, Token::Text(text)) if !negative => {
            let text = String::from_utf8(text.clone())
                .map_err(|_| Fault::new("", "the string is not UTF-8").hint("save the file as UTF-8"))?;
            Some(Value::String(text))
        }
        (Kind::Bytes, Token::Text(text)) if !negative => Some(Value::Bytes(text.clone().into())),
        (Kind::Enum(names), Token::Word(word)) if !negative => return enum_value(names, word),
        (Kind::Enum(names), Token::Number(digits)) => {
            let number = integer(digits, negative, kind)?;
            let number = i32::try_from(number).ok().filter(|n| names.get_value(*n).is_some());
            Some(Value::EnumNumber(number.ok_or_else(|| expected(kind, negative, token))?))
        }
        (Kind::Float, _) => float(negative, token).map(|v| Value::F32(v as f32)),
        (Kind::Double, _) => float(negative, token).map(Value::F64),
        (_, Token::Number(digits)) => {
            let number = integer(digits, negative, kind)?;
            match kind {
                Kind::Int32 => i32::try_from(number).ok().map(Value::I32),
                Kind::Int64 => i64::try_from(number).ok().map(Value::I64),
                // Minus nothing is not an unsigned number in protobuf.
                Kind::Uint32 if !negative => u32::try_from(number).ok().map(Value::U32),
                _ => None,
            }
        }
        _ => None,
    };
    value.ok_or_else(|| expected(kind, negative, token))
}

fn expected(kind: &Kind, negative: bool, token: &Token<'_>) -> Fault {
    let what = match kind {
        Kind::Bool => "true or false".to_owned(),
        Kind::String | Kind::Bytes => "a string in quotes".to_owned(),
        Kind::Float | Kind::Double => "a number".to_owned(),
        Kind::Int32 => format!("a whole number from {} to {}", i32::MIN, i32::MAX),
        Kind::Uint32 => format!("a whole number from 0 to {}", u32::MAX),
        Kind::Enum(names) => format!("one of {}", listed(names)),
        _ => format!("a whole number from {} to {}", i64::MIN, i64::MAX),
    };
    let sign = if negative { "-" } else { "" };
    let found = match token {
        Token::Number(digits) => format!("'{sign}{}'", shortened(digits)),
        _ => token.describe(),
    };
    let fault = Fault::new("", format!("expected {what}, found {found}"));
    match (kind, token) {
        (Kind::String, Token::Word(word)) => fault.hint(format!("write \"{}\"", shortened(word))),
        (Kind::Enum(_), Token::Text(_)) => fault.hint("write it without quotes"),
        _ => fault,
    }
}

fn listed(names: &EnumDescriptor) -> String {
    names.values().map(|v| v.name().to_owned()).collect::<Vec<_>>().join(", ")
}

fn enum_value(names: &EnumDescriptor, word: &str) -> Result<Value, Fault> {
    if let Some(value) = names.get_value_by_name(word) {
        return Ok(Value::EnumNumber(value.number()));
    }
    let fault =
        Fault::new("", format!("unknown value '{}'; expected one of {}", shortened(word), listed(names)));
    let all: Vec<String> = names.values().map(|v| v.name().to_owned()).collect();
    Err(match did_you_mean(&shortened(word), all.iter().map(String::as_str)) {
        Some(close) => fault.hint(format!("did you mean {close}?")),
        None => fault,
    })
}

fn boolean(token: &Token<'_>) -> Option<bool> {
    match token {
        Token::Word("true" | "True" | "t") => Some(true),
        Token::Word("false" | "False" | "f") => Some(false),
        Token::Number(digits) => match magnitude(digits)? {
            1 => Some(true),
            0 => Some(false),
            _ => None,
        },
        _ => None,
    }
}

/// A whole number, decimal, octal (0…) or hexadecimal (0x…).
fn magnitude(digits: &str) -> Option<u64> {
    let (rest, radix) = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hexadecimal) => (hexadecimal, 16),
        None if digits.len() > 1 && digits.starts_with('0') => (&digits[1..], 8),
        None => (digits, 10),
    };
    // `from_str_radix` takes a sign, which cannot follow a prefix here.
    rest.chars().all(|c| c.is_digit(radix)).then(|| u64::from_str_radix(rest, radix).ok())?
}

fn integer(digits: &str, negative: bool, kind: &Kind) -> Result<i128, Fault> {
    let number = magnitude(digits).ok_or_else(|| expected(kind, negative, &Token::Number(digits)))?;
    Ok(if negative { -i128::from(number) } else { i128::from(number) })
}

fn float(negative: bool, token: &Token<'_>) -> Option<f64> {
    let value = match token {
        Token::Word(word) if ["inf", "infinity"].iter().any(|w| word.eq_ignore_ascii_case(w)) => {
            f64::INFINITY
        }
        Token::Word(word) if word.eq_ignore_ascii_case("nan") => f64::NAN,
        Token::Number(digits) => {
            let plain = digits.strip_suffix(['f', 'F']).unwrap_or(digits);
            let fraction = plain.contains(['.', 'e', 'E']);
            // Whole numbers that look octal or hexadecimal are not decimal fractions.
            let decimal = fraction || plain == "0" || !plain.starts_with('0');
            if !decimal || !plain.bytes().all(|b| matches!(b, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'))
            {
                return None;
            }
            plain.parse().ok()?
        }
        _ => return None,
    };
    Some(if negative { -value } else { value })
}
